"""Verbs about one namespace: serve it, manage its entities, operate it."""
