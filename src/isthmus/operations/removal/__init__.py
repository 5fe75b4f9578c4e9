"""Messages taken out of an entity: chosen ones, all, or those of sessions."""
