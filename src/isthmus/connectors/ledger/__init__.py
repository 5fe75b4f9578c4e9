"""The account of what a route moves, at its target (docs/how-to/keep-a-ledger.md)."""
