"""What patterns are made of: members, replication subscriptions, marks, ends at logs."""
