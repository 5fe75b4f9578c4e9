"""The comparison of what entered a source with what is at the targets, and its counts."""
