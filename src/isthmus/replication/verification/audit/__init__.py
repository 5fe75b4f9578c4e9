"""An independent reading of a task's namespaces: what entered, and where each message is."""
