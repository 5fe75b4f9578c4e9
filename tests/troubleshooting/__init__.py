"""What leads to each error of docs/how-to/troubleshoot.md; `tests/interop/test_troubleshooting_page.py` runs it."""
