"""Non-blocking peeks at an entity."""
