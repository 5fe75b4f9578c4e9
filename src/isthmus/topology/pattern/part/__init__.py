"""The parts of patterns: members, replication subscriptions, marks, ends at logs."""
