"""A message as it lies in the store: read from its sender's bytes, seen by filters, changed, copied."""
