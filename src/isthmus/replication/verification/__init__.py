"""Verification: what the namespaces of a task hold against what entered them."""
