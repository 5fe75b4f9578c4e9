"""What entered a source against what is at the targets, and the counts of it."""
