"""Copies that are read by the layout of an earlier one equal those that are read by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.bridge.route_copy import copy
from isthmus.entities.error import InvalidMessageError
from isthmus.entities.record import parse
from isthmus.entities.record.copy import KeyReader, key_of
from isthmus.entities.record.copy_layout import CopyLayout
from isthmus.entities.record.parse import HeadCache, split_packed
from isthmus.entities.record.record import Parts
from isthmus.message.provenance import encoded

HEADER = b"\0Sp\xc0\x02\x01A"
Read = list[tuple[bytes, bytes, bytes, bytes]]

alike = st.builds(
    lambda number, origin, own, proof, message_id, text: (
        HEADER + copy(number, origin, own=own, proof=proof, message_id=message_id).rest.replace(b"0123abcd", text)
    ),
    st.sampled_from([7, 8, 12, 345, 10**12, "7", "007", "0", "x", "1;2", "²"]),
    st.sampled_from(["ewr/flights", "jfk/flights", "ewr/flightS"]),
    st.sampled_from([b"", encoded("a") + encoded("b"), encoded("a") + encoded("c"), b"\xa1\x01a\xb0\0\0\0\1b"]),
    st.sampled_from(["0" * 16, "0123456789abcdef", "-" * 16]),
    st.sampled_from(["id", "ie", "i" * 30]),
    st.sampled_from([b"0123abcd", b"ffffffff", b"------;-", b"0123\xa1bcd"]),
)
PLACES = (b"repl-sequence", b"repl-offset", b"repl-enqueued-time", b"repl-digest", b"\0Su", b"\0St", b"\0Ss")
changes = st.tuples(
    st.sampled_from(PLACES), st.integers(0, 20), st.sampled_from([bytes((byte,)) for byte in b"019a-;:/x \xa1\0"])
)


def changed(message: bytes, part: bytes, offset: int, byte: bytes) -> bytes:
    at = min(message.rfind(part) + len(part) + offset, len(message) - 1)
    return message[:at] + byte + message[at + 1 :]


def packed(messages: Sequence[bytes]) -> tuple[bytes, list[tuple[int, int]]]:
    data, bounds = b"", []
    for message in messages:
        bounds.append((len(data), len(data) + len(message)))
        data += message
    return data, bounds


def shown(found: Sequence[Parts]) -> Read:
    return [(each.head.header, each.rest, each.message_id, each.duplicate_key) for each in found]


def read(messages: Sequence[bytes], most: int) -> Read | None:
    with mock.patch.object(parse, "_LEARNS", most):
        try:
            return shown(split_packed(*packed(messages), HeadCache(0), KeyReader()))
        except InvalidMessageError:
            return None


@settings(max_examples=400)
@given(alike, changes)
@example(HEADER + copy(7).rest, (b"repl-sequence", 2, b"0"))
@example(HEADER + copy(7).rest, (b"\0Su", 1, b"a"))
@example(HEADER + copy(7).rest, (b"\0Ss", 3, b"a"))
def test_a_layout_reads_nothing_else_i1(message: bytes, change: tuple[bytes, int, bytes]) -> None:
    check([message] * 4 + [changed(message, *change)])


@given(st.lists(st.tuples(alike, st.integers(1, 4)), min_size=1, max_size=8))
def test_a_layout_changes_nothing_i1(runs: list[tuple[bytes, int]]) -> None:
    check([message for message, count in runs for _ in range(count)])


def test_a_forged_digest_i1() -> None:
    message = HEADER + copy(7).rest
    check([message] * 4 + [message.replace(b"0" * 16, b"\xa1\x0brepl-origin\xa1\x01/")])


def test_a_pair_that_begins_in_the_count_i1() -> None:
    whole = HEADER + copy(7).rest
    at = whole.index(b"\0St\xd1")
    size = int.from_bytes(whole[at + 4 : at + 8], "big") - 1
    check([whole[: at + 4] + size.to_bytes(4, "big") + b"\0\0\0" + whole[at + 12 :]] * 5)


def check(messages: Sequence[bytes]) -> None:
    by_layout = read(messages, 8)
    assert by_layout == read(messages, 0)
    for _, rest, _, key in by_layout or ():
        assert key == key_of(rest)


def test_copies_of_one_route_are_read_by_their_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    by_layout: list[Parts | None] = []
    plain = CopyLayout.read

    def noted(*arguments: object) -> Parts | None:
        by_layout.append(plain(*arguments))  # type: ignore[arg-type]
        return by_layout[-1]

    monkeypatch.setattr(CopyLayout, "read", noted)
    messages = [HEADER + copy(number, proof=f"{number:016x}").rest for number in range(10, 20)]
    found = split_packed(*packed(messages), HeadCache(0), KeyReader())
    # Without one: the first, whose head is not known, and two in a row.
    assert by_layout == found[-7:]
    assert [key_of(each.rest) for each in found] == [each.duplicate_key for each in found]
