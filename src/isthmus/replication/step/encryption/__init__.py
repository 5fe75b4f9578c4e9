"""Keys and the compact serialization of encrypted bodies."""
