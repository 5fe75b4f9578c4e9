"""isthmus.connectors.rabbitmq_streams.last_chunk: the last message of a stream, and when a stream is empty."""

from __future__ import annotations

import math

from isthmus.connectors.rabbitmq.port.stream import EMPTY_SECONDS
from isthmus.connectors.rabbitmq_streams.last_chunk import LastChunk


def test_the_last_message_of_the_whole_chunk_is_found() -> None:
    chunk = LastChunk()
    chunk.declared(0)  # it may not be up to date
    chunk.began(1.0)
    assert chunk.saw(7, "seven")
    assert not chunk.saw(8, "eight")
    chunk.look(1.0 + EMPTY_SECONDS)
    assert chunk.found is None
    chunk.declared(2)
    assert chunk.found == (8, "eight")


def test_i1_a_stream_without_messages_of_which_nothing_comes_is_empty() -> None:
    chunk = LastChunk()
    chunk.declared(0)
    chunk.began(1.0)
    chunk.look(chunk.empty_at - 0.001)
    assert chunk.found is None
    chunk.look(1.0 + EMPTY_SECONDS)
    assert (chunk.found, chunk.empty_at) == ((-1, ""), math.inf)


def test_i1_a_stream_with_messages_is_waited_for() -> None:
    chunk = LastChunk()
    chunk.declared(3)
    chunk.began(1.0)
    chunk.look(1e9)
    assert chunk.found is None
