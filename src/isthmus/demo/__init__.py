"""The demo: a federation of three airports on one machine, from real flights to the verification that none was lost."""
