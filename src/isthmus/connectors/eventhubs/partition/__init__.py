"""Partitions of an event hub: addresses, links, where a reader begins, what it has read."""
