"""The counts of a reconciliation by the hour."""
