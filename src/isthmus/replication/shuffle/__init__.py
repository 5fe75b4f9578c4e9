"""Routes with a step that processes several messages together: they read through spools (docs/explanation/spool.md)."""
