"""The account of the messages that a route moves, kept at its target (docs/how-to/keep-a-ledger.md)."""
