"""The catalog of a namespace: names, descriptions, limits and tiers of its entities."""
