"""The checks before a run: of namespaces, rights, routes."""
