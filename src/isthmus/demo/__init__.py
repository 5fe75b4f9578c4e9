"""The demo: a federation of three airports on one machine, from real flights to a proof that none was lost."""
