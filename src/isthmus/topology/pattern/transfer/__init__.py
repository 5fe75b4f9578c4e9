"""Transfers: one message's path from one entity to another."""
