"""The control connections between the driver and the readers of a run."""
