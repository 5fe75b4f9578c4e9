"""Verification: what the namespaces of a task contain, compared with what entered them."""
