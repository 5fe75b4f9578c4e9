"""Partitioned entities: one entity in several fragments, each in one of several stores that can fail alone.

What it is: the stores of fragments (`store`), the choice of a fragment (`message_key`, `slot`), the entities as senders and receivers
see them (`entity`, `queue`, `topic`), and their starts, failures and deletions (`partitions`). What it is not:
a fragment itself, which is an ordinary queue or topic of its store.
Spec: docs/explanation/protocol.md, Entities; docs/explanation/partitions.md.
"""
