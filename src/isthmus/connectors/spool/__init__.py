"""The durable spool: segment files that a route writes and a Spark query reads (docs/explanation/spool.md)."""
