"""Ledgers: the tables in which targets note what they took."""
