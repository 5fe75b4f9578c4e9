"""Claims: which run may act for a task."""
