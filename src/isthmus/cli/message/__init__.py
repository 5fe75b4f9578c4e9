"""Verbs about messages of one entity."""
