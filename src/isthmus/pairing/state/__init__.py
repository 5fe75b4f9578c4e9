"""What a pair is doing, and the file that says so."""
