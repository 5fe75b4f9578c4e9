"""The alias of a pair: one address that forwards to the active member."""
