"""Any AMQP 1.0 broker as a connector of the bridge."""
