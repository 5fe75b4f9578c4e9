from __future__ import annotations

import time

from isthmus.amqp.section import decode_properties, locate
from isthmus.bench.load import BODY_BYTES, Mint, stamp_of


def test_i2_a_minted_message_is_a_message_with_its_stamp() -> None:
    before = time.monotonic()
    first, second = Mint().make(41, 2)
    sections = locate(second)
    assert sections.properties is not None
    assert sections.header is not None
    name = decode_properties(second, sections.properties)["message_id"]
    assert name.endswith(f"-{42:019d}")
    sent, ordinal = stamp_of(second)
    assert ordinal == 42
    assert before <= sent <= time.monotonic()
    assert len(first) == len(second) > BODY_BYTES
