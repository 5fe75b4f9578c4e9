"""A message as it is in the store: read from its sender's bytes, seen by filters, changed, copied."""
