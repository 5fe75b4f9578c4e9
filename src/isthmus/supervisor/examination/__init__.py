"""What is examined before a run: namespaces, rights, routes."""
