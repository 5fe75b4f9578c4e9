"""A drill: the loss of a member under load, rehearsed and measured."""
