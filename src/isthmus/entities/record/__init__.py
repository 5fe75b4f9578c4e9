"""The stored form of a message: parsed from its sender's bytes, read by filters, changed, copied."""
