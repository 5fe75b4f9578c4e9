"""A drill: the loss of a member under load, simulated and measured."""
