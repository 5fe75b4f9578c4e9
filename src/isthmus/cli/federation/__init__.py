"""Verbs about a federation file: what it declares, and the entities that it needs."""
