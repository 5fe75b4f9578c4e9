"""The steps of routes, composed: opened from their declarations, and applied to the rows of a query."""
