"""The partition of a key: the values are those of Apache Kafka's own tests of its Java client."""

from __future__ import annotations

import pytest

from isthmus.connectors.kafka.mapping.murmur2 import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_the_java_client(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


def test_a_partition_is_one_of_the_topic() -> None:
    assert {partition_of(str(number).encode(), 5) for number in range(100)} == set(range(5))
    assert partition_of(b"", 1) == 0
