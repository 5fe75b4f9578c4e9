"""Two namespaces under one alias: metadata kept in step, planned and forced fail-over, fail-back."""
