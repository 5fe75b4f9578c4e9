"""Authentication and authorization in a namespace: keys, tokens, certificates."""
