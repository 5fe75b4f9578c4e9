"""Entities that require sessions: their sessions, the messages and the locks of these."""
