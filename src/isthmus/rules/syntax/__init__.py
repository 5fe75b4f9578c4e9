"""Text to a syntax tree."""
