"""Verbs about a run: start it, watch it, pause its tasks, verify and repeat what it moved."""
