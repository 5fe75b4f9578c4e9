"""The state of a pair, the effects of other processes' markers on it, and its file."""
