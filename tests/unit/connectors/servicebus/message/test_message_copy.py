"""The copy policy, field by field, as the rewriter applies it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.amqp.section import Header, locate
from isthmus.amqp.types import Int, Long, Timestamp
from isthmus.connectors.servicebus.message.message_rewriter import VISITED, Mark, MessageRewriter, Refused
from isthmus.connectors.servicebus.port.option import read_target
from isthmus.errors import ConfigError
from isthmus.message import iso
from isthmus.message.copy_policy import CopyPolicy
from isthmus.message.lifetime import DEADLINE_PASSED
from isthmus.message.provenance import digest

NOW_MS = 1_700_000_100_000
ENQUEUED_MS = NOW_MS - 10_000


def stored(sequence: int = 7, ttl_ms: int | None = None, *, header: bool = True, **parts: Any) -> bytes:
    broker: dict[Any, Any] = {
        "x-opt-locked-until": Timestamp(NOW_MS + 1000),
        "x-opt-sequence-number": Long(sequence),
        "x-opt-enqueued-time": Timestamp(ENQUEUED_MS),
    }
    return section.encode_message(
        b"body",
        header=Header(True, 4, ttl_ms, False, 3) if header else None,
        annotations=broker | parts.get("annotations", {}),
        properties=parts.get("properties", {"message_id": "m1"}),
        application_properties=parts.get("own"),
    )


def rewriter(policy: CopyPolicy, origin: str = "ewr/flights") -> MessageRewriter:
    return MessageRewriter(origin, "jfk", mark=Mark("seen"), policy=policy)


def copied(message: bytes, policy: CopyPolicy) -> bytes:
    copy = rewriter(policy).copy(message, NOW_MS)
    assert isinstance(copy, bytes), copy
    return copy


def ttl(copy: bytes) -> int | None:
    return section.decode_header(copy, locate(copy).header).ttl_ms


def own(copy: bytes) -> dict[Any, Any]:
    return section.decode_map(copy, locate(copy).application_properties)


def annotated(copy: bytes) -> dict[Any, Any]:
    return section.decode_map(copy, locate(copy).message_annotations)


def properties(copy: bytes) -> dict[str, Any]:
    return section.decode_properties(copy, locate(copy).properties)


@pytest.mark.parametrize(
    ("header", "ttl_ms", "wanted"),
    [
        (False, None, 30_000),
        (True, None, 30_000),
        (True, 20_000, 10_000),
        (True, 3_600_000, 30_000),
        (True, 5_000, 1),
    ],
)
def test_a_ceiling_is_set_whether_the_message_had_an_end_or_not(ttl_ms: int | None, wanted: int, header: bool) -> None:
    policy = CopyPolicy(ttl_ceiling_ms=30_000)
    messages = [stored(n, ttl_ms, header=header) for n in range(1, 5)]
    offsets = [0, *(sum(map(len, messages[: n + 1])) for n in range(4))]
    copies, refused = rewriter(policy).copy_all(b"".join(messages), offsets, NOW_MS)
    assert not refused
    assert copies == [copied(message, policy) for message in messages]  # the fast path and the general one
    assert [ttl(copy) for copy in copies] == [wanted] * 4
    priority = section.decode_header(copies[0], locate(copies[0]).header).priority
    assert (priority, locate(copies[0]).header[0]) == (4, 0)


def test_a_deadline_counts_from_the_first_hop() -> None:
    policy = CopyPolicy(deadline_ms=60_000)
    assert ttl(copied(stored(), policy)) == 50_000
    hop = {"repl-origin": "lga/flights", "repl-namespace": "lga", "repl-sequence": "1", "repl-offset": "1"}
    before = hop | {"repl-enqueued-time": iso(NOW_MS - 40_000), "repl-digest": digest(b"m1", b"body")}
    assert ttl(copied(stored(own=before), policy)) == 20_000
    assert ttl(copied(stored(ttl_ms=1, own=before), policy)) == 20_000
    # Properties that another message bears prove nothing.
    assert ttl(copied(stored(own=before | {"repl-digest": "0" * 16}), policy)) == 50_000


def test_a_forwarded_dead_letter_shows_when_it_was_first_enqueued() -> None:
    policy = CopyPolicy(deadline_ms=60_000, deadline_spent_ms=30_000)
    first = {"x-opt-first-enqueued-time": Timestamp(NOW_MS - 15_000)}
    copy = copied(stored(annotations=first), policy)
    assert (ttl(copy), annotated(copy)) == (45_000, {})
    assert ttl(copied(stored(), policy)) == 20_000


def test_nothing_left_of_the_deadline_is_refused_with_the_reason() -> None:
    verdict = rewriter(CopyPolicy(deadline_ms=10_000)).copy(stored(), NOW_MS)
    assert isinstance(verdict, Refused)
    assert (verdict.disposition, verdict.reason) == ("dead-letter", DEADLINE_PASSED)


def test_properties_are_set_and_removed() -> None:
    policy = CopyPolicy(properties={"spilled": 1, "by": "isthmus", "late": True}, removed=("secret", "absent"))
    found = own(copied(stored(own={"by": "us", "secret": "x", "n": Int(3)}), policy))
    assert {name: found.pop(name) for name in ("spilled", "by", "late", "n")} == {
        "spilled": 1,
        "by": "isthmus",
        "late": True,
        "n": Int(3),
    }
    assert all(name.startswith("repl-") or name == "seen" for name in found)
    assert own(copied(stored(), policy))["by"] == "isthmus"


def test_why_the_original_was_dead_lettered_is_kept_and_the_brokers_own_goes() -> None:
    dead = {"DeadLetterReason": "TTLExpiredException", "DeadLetterErrorDescription": "It expired.", "gate": "A1"}
    message = stored(own=dead, annotations={"x-opt-deadletter-source": "flights"})
    copy = copied(message, CopyPolicy(keeps_dead_letter=True))
    found = own(copy)
    assert found["repl-dead-letter-reason"] == "TTLExpiredException"
    assert found["repl-dead-letter-description"] == "It expired."
    assert found["repl-dead-letter-source"] == "flights"
    assert found["gate"] == "A1"
    assert not {"DeadLetterReason", "DeadLetterErrorDescription"} & found.keys()
    assert annotated(copy) == {}
    # Only then: another route leaves what the message bears as it is.
    assert own(copied(message, CopyPolicy()))["DeadLetterReason"] == "TTLExpiredException"


def test_the_second_death_replaces_the_first() -> None:
    dead = {
        "DeadLetterReason": "second",
        "repl-dead-letter-reason": "first",
        "repl-dead-letter-description": "long ago",
    }
    found = own(copied(stored(own=dead), CopyPolicy(keeps_dead_letter=True)))
    assert found["repl-dead-letter-reason"] == "second"
    assert "repl-dead-letter-description" not in found
    del dead["DeadLetterReason"]
    found = own(copied(stored(own=dead), CopyPolicy(keeps_dead_letter=True)))
    assert found["repl-dead-letter-reason"] == "first"
    assert found["repl-dead-letter-description"] == "long ago"


def test_a_session_comes_from_the_partition_key() -> None:
    policy = CopyPolicy(session_from="partition-key")
    keyed = stored(annotations={"x-opt-partition-key": "p1"}, properties={"message_id": "m1", "group_id": "old"})
    copy = copied(keyed, policy)
    assert properties(copy) == {"message_id": "m1", "group_id": "p1"}
    assert annotated(copy) == {"x-opt-partition-key": "p1"}
    assert properties(copied(stored(properties={"group_id": "old", "message_id": "m"}), policy))["group_id"] == "old"


def test_a_partition_key_comes_from_the_session() -> None:
    policy = CopyPolicy(partition_from="session-id")
    keyed = {"x-opt-partition-key": "old", "mine": "x"}
    with_session = stored(annotations=keyed, properties={"message_id": "m1", "group_id": "s1"})
    assert annotated(copied(with_session, policy)) == {"mine": "x", "x-opt-partition-key": "s1"}
    assert annotated(copied(stored(annotations=keyed), policy)) == keyed


@pytest.mark.parametrize("returning", ["complete", "dead-letter"])
def test_what_would_return_is_completed_or_dead_lettered(returning: str) -> None:
    hop = {"repl-origin": "jfk/flights", "repl-namespace": "jfk", "repl-sequence": "1", "repl-offset": "1"}
    been = stored(own=hop | {"repl-enqueued-time": iso(NOW_MS), "repl-digest": digest(b"m1", b"body")})
    policy = CopyPolicy(dead_letters_returning=returning == "dead-letter")
    verdict = rewriter(policy).copy(been, NOW_MS)
    assert isinstance(verdict, Refused)
    assert (verdict.disposition, verdict.reason) == (returning, VISITED)


def test_a_message_id_is_made_of_origin_and_position() -> None:
    policy = CopyPolicy(makes_message_ids=True)
    first, again, other = (
        properties(copied(stored(number, properties={"subject": "a"}), policy))["message_id"] for number in (7, 7, 8)
    )
    assert first == again != other
    assert properties(copied(stored(), policy))["message_id"] == "m1"


def test_a_policy_is_carried_out_without_provenance() -> None:
    policy = CopyPolicy(ttl_ceiling_ms=1_000, properties={"a": "b"})
    copy = rewriter(policy, origin="").copy(stored(), NOW_MS)
    assert isinstance(copy, bytes)
    assert (ttl(copy), own(copy)) == (1_000, {"a": "b"})


def test_the_target_takes_the_policy_as_an_option() -> None:
    options = {"connection": "env:JFK", "entity": "flights"}
    policy = CopyPolicy(ttl_ceiling_ms=5)
    assert CopyPolicy.from_text(read_target({**options, "policy": policy.to_text()}).policy) == policy
    assert read_target(options).policy == replace(CopyPolicy()).to_text()
    with pytest.raises(ConfigError, match="copy policy"):
        read_target({**options, "policy": "{"})
