"""What leads to each error of docs/how-to/troubleshoot.md; `tests/interop/operator/test_troubleshooting_page.py` runs it."""
