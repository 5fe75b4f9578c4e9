"""RabbitMQ: queues as sources, queues and exchanges as targets, over AMQP 0-9-1."""
