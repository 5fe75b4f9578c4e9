"""Flow control of routes: credit, bytes in flight, rates."""
