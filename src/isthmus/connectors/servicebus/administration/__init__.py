"""Entities of a namespace through azure-servicebus's administration client."""
