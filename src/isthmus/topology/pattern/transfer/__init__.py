"""Transfers: the ways of one message from one entity to another."""
