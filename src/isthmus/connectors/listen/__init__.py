"""Sources that are sent events by HTTP: a listener that answers once a durable spool has them."""
