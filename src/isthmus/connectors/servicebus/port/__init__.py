"""Service Bus as the ports of the bridge (`isthmus.bridge.port`)."""
