"""What a pair is doing, what follows from markers of other processes, and the file that says so."""
