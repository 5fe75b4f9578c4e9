"""Azure Event Grid as a kind of system (docs/how-to/use-event-grid.md)."""
