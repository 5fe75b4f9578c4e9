"""Partitions of an event hub: addresses, links, the start of a reader, its unsettled events."""
