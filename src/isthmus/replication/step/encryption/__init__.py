"""Keys and the compact form of encrypted bodies."""
