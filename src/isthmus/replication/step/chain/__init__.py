"""The steps of routes, composed: opened by their declarations, and applied to the rows of a query."""
