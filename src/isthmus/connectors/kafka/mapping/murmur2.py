"""The partition of a key, as Kafka's own clients choose it.

What it is: the hash murmur2, and the partition that it selects. What it is not: the choice for records without a key.
Specification: Apache Kafka documentation, `partitioner.class`; its Java client hashes keys by murmur2 with the seed 0x9747b28c.
"""

from __future__ import annotations

import struct

__all__ = ["murmur2", "partition_of"]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash, from 0 to 2^32 - 1."""
    length = len(data)
    found = _SEED ^ length
    whole = length // 4
    for word in struct.unpack_from(f"<{whole}I", data):
        mixed = word * _M & _MASK
        found = found * _M & _MASK ^ (mixed ^ mixed >> 24) * _M & _MASK
    if rest := data[whole * 4 :]:
        found = (found ^ int.from_bytes(rest, "little")) * _M & _MASK
    found = (found ^ found >> 13) * _M & _MASK
    return found ^ found >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a record with this key, from 0."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
