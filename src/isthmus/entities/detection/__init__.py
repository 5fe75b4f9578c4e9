"""Duplicate detection: the message ids and duplicate keys that were seen within a window."""
