"""Transactions, and sending via one entity to another."""
