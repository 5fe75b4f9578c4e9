"""Azure Service Bus, and any namespace that speaks its protocol."""
