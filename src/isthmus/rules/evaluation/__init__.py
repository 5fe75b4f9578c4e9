"""What filters and actions do with a message: closures over a view."""
