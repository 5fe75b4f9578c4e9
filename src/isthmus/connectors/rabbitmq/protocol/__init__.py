"""AMQP 0-9-1: frames, tables, properties, connections."""
