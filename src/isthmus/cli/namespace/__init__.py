"""Verbs about one namespace: serve it, manage its entities, look after it."""
