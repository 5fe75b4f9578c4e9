"""An encoded message for steps: its fields, its values, and additional columns."""
