"""RabbitMQ streams: a source that can be read repeatedly."""
