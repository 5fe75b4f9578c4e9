"""The driver of `examples/`: applications by a script, and a verification at the end."""
