"""A fail-over: its phases, the messages it moves, and the fence of the former active member."""
