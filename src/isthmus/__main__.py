"""`python -m isthmus` is the `isthmus` command."""

from isthmus.cli.app import main

main()
