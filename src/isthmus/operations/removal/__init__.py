"""Messages removed from an entity: selected ones, all, or those of sessions."""
