"""The reader's side of routes: the lease machine and the parts of its state."""
