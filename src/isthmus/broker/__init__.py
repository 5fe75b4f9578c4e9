"""The namespace server: AMQP, HTTP and TLS on sockets around the engine of `isthmus.entities`."""
