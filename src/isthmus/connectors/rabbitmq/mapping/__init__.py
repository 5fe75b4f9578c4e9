"""Messages of AMQP 0-9-1 as encoded AMQP 1.0 messages, and back."""
