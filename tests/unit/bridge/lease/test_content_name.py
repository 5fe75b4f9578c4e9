"""isthmus.bridge.lease.content_name"""

from __future__ import annotations

from isthmus.amqp import section
from isthmus.amqp.types import Symbol, ULong
from isthmus.bridge.lease.content_name import content_name


def _delivered(body: bytes, count: int) -> bytes:
    annotations = {Symbol("x-opt-delivery"): ULong(count)}
    header = section.encode_header(section.Header(delivery_count=count))
    return header + section.encode_map_section(section.MESSAGE_ANNOTATIONS, annotations) + section.encode_message(body)


def test_a_delivery_changes_no_name() -> None:
    assert content_name(_delivered(b"x", 0)) == content_name(_delivered(b"x", 7))
    assert content_name(_delivered(b"x", 0)) != content_name(_delivered(b"y", 0))


def test_what_cannot_be_read_has_a_name_too() -> None:
    names = {content_name(each) for each in (b"", b"x", b"\0Sp\xff", b"\0S")}
    assert len(names) == 4
    assert all(0 < name < 1 << 48 for name in names)
