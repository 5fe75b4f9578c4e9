"""What a reading records of a copy: the lane in which it keeps its order."""

from __future__ import annotations

from isthmus.amqp import section
from isthmus.amqp.types import Long, Symbol
from isthmus.connectors.servicebus.head import FRAGMENT_BITS
from isthmus.replication.verification.audit.audited import Audited
from isthmus.replication.verification.identity import Identity
from isthmus.replication.verification.reconciliation.reconcile import compare


def lanes(names: list[str | None], *, by_session: bool) -> list[int]:
    at = Audited("jfk", "q", by_session=by_session)
    for number, name in enumerate(names, 1):
        annotations = {Symbol("x-opt-sequence-number"): Long(number)}
        message = section.encode_map_section(section.MESSAGE_ANNOTATIONS, annotations) + section.encode_message(
            b"x", properties={"group_id": name} if name is not None else {}
        )
        identity = Identity((3 << FRAGMENT_BITS) + number, "ewr", "", number, "")
        at.take(message, identity)
    return list(at.arrivals["ewr"].lanes)


def test_an_order_by_session_is_compared_within_each_session() -> None:
    found = lanes(["a", "b", "a", None, None], by_session=True)
    assert found[0] == found[2] != found[1]
    assert found[3] == found[4] == 0


def test_any_other_order_is_compared_within_each_partition() -> None:
    assert lanes(["a", "b"], by_session=False) == [3, 3]


def test_messages_of_two_sessions_may_pass_each_other_and_those_of_one_may_not() -> None:
    numbers = [2, 1, 4, 3]
    assert compare("ewr", "jfk", [1, 2, 3, 4], numbers, lanes=[7, 8, 7, 8]).counts["out_of_order"] == 0
    assert compare("ewr", "jfk", [1, 2, 3, 4], numbers, lanes=[7, 7, 8, 8]).counts["out_of_order"] == 2
