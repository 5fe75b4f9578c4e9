"""Who may do what in a namespace: keys, tokens, certificates."""
