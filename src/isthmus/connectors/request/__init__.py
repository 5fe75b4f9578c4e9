"""Targets that take messages by blocking requests, e.g. over HTTP."""
