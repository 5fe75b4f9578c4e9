"""The alias of a pair: one address that leads to whichever member is active."""
