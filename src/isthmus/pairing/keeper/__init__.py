"""The metadata of a pair, kept in step in rounds."""
