"""What stands at an entity: looks that wait for nothing."""
