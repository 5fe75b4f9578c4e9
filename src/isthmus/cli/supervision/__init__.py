"""Verbs about a run: start it, watch it, pause its tasks, prove and repeat what it moved."""
