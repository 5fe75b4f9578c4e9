"""Archives: what routes received, in tables of Parquet files (docs/how-to/archive-messages.md)."""
