"""Archives: received messages in tables of Parquet files (docs/how-to/archive-messages.md)."""
