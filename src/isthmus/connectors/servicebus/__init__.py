"""Azure Service Bus, and any namespace that implements its protocol."""
