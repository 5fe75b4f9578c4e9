"""Claims: the exclusive right of a run to move a task."""
