"""Messages in a file: written from an entity, and sent into one."""
