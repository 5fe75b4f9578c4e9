"""Topics: copies of each message for the subscriptions whose rules select it."""
