"""How much a route may take: credit, bytes in flight, rates."""
