"""What can be said about a filter without a message."""
