"""Sources that receive events by HTTP: a listener that answers once a durable spool contains them."""
