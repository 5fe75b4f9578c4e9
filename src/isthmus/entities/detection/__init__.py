"""Duplicate detection: which message ids and duplicate keys were seen within a window."""
