"""The sink's side of routes: the delivery machine and the parts of its state."""
