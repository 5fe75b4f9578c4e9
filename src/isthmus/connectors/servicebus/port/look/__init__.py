"""What is at an entity: looks that wait for nothing."""
