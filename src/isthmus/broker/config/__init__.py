"""A namespace's file: read, checked, and made true."""
