"""Messages in systems without application properties: wrapped, and restored by the reader (docs/explanation/wrapped-messages.md)."""
