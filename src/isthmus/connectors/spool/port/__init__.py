"""A spool as a source on the port of the bridge."""
