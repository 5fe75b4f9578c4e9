"""Which entities there are: names, descriptions, limits and tiers."""
