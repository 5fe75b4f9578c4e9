"""An encoded message as steps see it: its fields, its values, and columns beside it."""
