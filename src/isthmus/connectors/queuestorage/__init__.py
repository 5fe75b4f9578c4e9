"""Azure Queue Storage as a kind of system (docs/how-to/use-queue-storage.md)."""
