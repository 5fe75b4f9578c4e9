"""Entities that require sessions: which sessions there are, their messages, and who holds them."""
