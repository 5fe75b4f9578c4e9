"""Routes with a step that looks at several messages together: they read through spools (docs/explanation/spool.md)."""
