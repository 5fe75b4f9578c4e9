"""Messages in systems without application properties: wrapped, so that the way back opens them (docs/explanation/wrapped-messages.md)."""
