"""A fail-over: its phases, what is moved, and the closing of the member that was left."""
