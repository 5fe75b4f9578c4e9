"""An independent reading of a task's namespaces: which messages entered, and where each of them is."""
