"""The engine's decisions, free of sockets, threads and any system's types: events and `now` in, verdicts out."""
