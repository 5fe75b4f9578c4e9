"""Encoded messages, read and changed without decoding them."""
