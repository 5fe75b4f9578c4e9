"""Ledgers: tables of the messages that targets acknowledged."""
