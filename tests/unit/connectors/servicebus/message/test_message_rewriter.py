import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.amqp import section
from isthmus.amqp.section import Header, locate
from isthmus.amqp.types import Int, Long, Symbol, Timestamp, UInt
from isthmus.connectors.servicebus.message.layout import Layouts
from isthmus.connectors.servicebus.message.message_rewriter import (
    COPIED,
    HOPS_USED_UP,
    MALFORMED,
    VISITED,
    Mark,
    MessageRewriter,
    Refused,
)
from isthmus.message import digest, duplicate_key, made_message_id
from isthmus.message.copy_policy import CopyPolicy
from isthmus.message.name import DIGEST, HOP_PROPERTIES
from isthmus.replication.verification.identity import provenance_of

NOW_MS = 1_700_000_100_000
ENQUEUED_MS = 1_700_000_000_123
STORED_HEADER = Header(True, 4, None, False, 3)
ISO = "2023-11-14T22:13:20.123Z"

values = st.one_of(
    st.text(max_size=300),
    st.binary(max_size=300),
    st.integers(-(2**63), 2**63 - 1).map(Long),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(0, 2**32 - 1).map(UInt),
    st.booleans(),
    st.floats(allow_nan=False),
    st.uuids(),
    st.none(),
)
names = st.text(min_size=1, max_size=40).filter(lambda name: name != "RuleName" and not name.startswith("repl-"))


def stored(
    sequence: int = 1 << 33,
    *,
    topic_sequence: int | None = None,
    header: Header | None = STORED_HEADER,
    own: dict[str, Any] | None = None,
    annotations: dict[str, Any] | None = None,
    properties: dict[str, Any] | None = None,
    body: bytes = b"body",
) -> bytes:
    broker: dict[Any, Any] = {
        "x-opt-locked-until": Timestamp(NOW_MS + 1000),
        "x-opt-sequence-number": Long(sequence),
        "x-opt-enqueued-time": Timestamp(ENQUEUED_MS),
    }
    if topic_sequence is not None:
        broker["x-opt-enqueue-sequence-number"] = Long(topic_sequence)
    return section.encode_message(
        body,
        header=header,
        annotations=broker | (annotations or {}),
        properties={"message_id": "m1"} if properties is None else properties,
        application_properties=own,
    )


def been(*paths: str) -> dict[str, str]:
    """The provenance of a copy of the message that `stored` makes, which has been at these places."""
    hops = [(path, path.partition("/")[0], "1", "1", ISO) for path in paths]
    columns = (";".join(column) for column in zip(*hops, strict=True))
    return dict(zip(HOP_PROPERTIES, columns, strict=True)) | {DIGEST: digest(b"m1", b"body")}


def application(message: bytes) -> dict[Any, Any]:
    return section.decode_map(message, locate(message).application_properties)


def copied(message: bytes, rewriter: MessageRewriter | None = None) -> bytes:
    made = (rewriter or MessageRewriter("ewr/flights", "jfk")).copy(message, NOW_MS)
    assert isinstance(made, bytes)
    return made


def test_provenance_is_added_and_nothing_else_changes() -> None:
    message = stored(7, own={"gate": "A1", "n": Int(3)})
    copy = copied(message)
    assert application(copy) == {
        "gate": "A1",
        "n": Int(3),
        "repl-origin": "ewr/flights",
        "repl-namespace": "ewr",
        "repl-sequence": "7",
        "repl-offset": "7-" + digest(b"m1", b"body")[:8],
        "repl-enqueued-time": ISO,
        "repl-digest": digest(b"m1", b"body"),
    }
    assert copy.endswith(message[slice(*locate(message).body)])


def test_a_subscription_shows_the_topics_number() -> None:
    assert application(copied(stored(7, topic_sequence=1 << 40)))["repl-sequence"] == str(1 << 40)


def key_of(copy: bytes) -> bytes:
    return duplicate_key(copy, *locate(copy).application_properties)


FORWARDED = [
    ({"body": b"one"}, {"body": b"two"}),
    ({"properties": {"message_id": "one"}}, {"properties": {"message_id": "two"}}),
    ({"properties": {}, "body": b"one"}, {"properties": {}, "body": b"two"}),
]


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize(("one", "other"), FORWARDED)
def test_messages_forwarded_from_two_topics_with_the_same_number_and_time_are_two(
    one: dict[str, Any], other: dict[str, Any], made: bool
) -> None:
    """`x-opt-enqueue-sequence-number` is that of the topic that each entered, so both may have the same one here."""
    rewriter = MessageRewriter("ewr/flights", "jfk", makes_message_ids=made)
    copies = [copied(stored(8 + n, topic_sequence=7, **what), rewriter) for n, what in enumerate((one, other))]
    assert key_of(copies[0]) != key_of(copies[1])
    if made:
        ids = [section.decode_properties(each, locate(each).properties)["message_id"] for each in copies]
        assert ids[0] != ids[1]


@pytest.mark.parametrize("marks", [None, Mark("isthmus-flights")])
@pytest.mark.parametrize("what", [{}, {"properties": {}}, {"annotations": {"x": 1}}])
def test_a_message_has_the_same_key_by_every_route(what: dict[str, Any], marks: Mark | None) -> None:
    direct = copied(stored(7, **what), MessageRewriter("ewr/flights", "lga", mark=marks))
    again = copied(stored(7, **what, header=None), MessageRewriter("ewr/flights", "lga"))
    for makes in (False, True):
        first = copied(stored(7, **what), MessageRewriter("ewr/flights", "jfk", makes_message_ids=makes))
        properties = section.decode_properties(first, locate(first).properties)
        second = stored(9, own=application(first), properties={"message_id": properties["message_id"]})
        assert key_of(copied(second, MessageRewriter("jfk/flights", "lga"))) == key_of(direct) == key_of(again)


def test_steps_that_change_contents_do_not_change_the_key() -> None:
    copies = [copied(stored(7, body=body), MessageRewriter("ewr/flights", "jfk", trusts=True)) for body in (b"a", b"b")]
    assert key_of(copies[0]) == key_of(copies[1])
    assert application(copies[0])["repl-offset"] == "7"


def test_later_hops_are_joined_and_the_first_value_stays_i2() -> None:
    once = copied(stored(7))
    sections = locate(once)
    assert provenance_of(once) is not None
    again = stored(9, own=section.decode_map(once, sections.application_properties))
    twice = application(copied(again, MessageRewriter("jfk/flights", "lga")))
    assert twice["repl-origin"] == "ewr/flights;jfk/flights"
    assert twice["repl-sequence"] == "7;9"
    assert twice["repl-enqueued-time"] == f"{ISO};{ISO}"


def test_a_message_never_returns_i3() -> None:
    rewriter = MessageRewriter("jfk/flights", "ewr")
    verdict = rewriter.copy(stored(own=been("ewr/flights")), NOW_MS)
    assert isinstance(verdict, Refused)
    assert (verdict.disposition, verdict.reason, rewriter.looped) == ("complete", VISITED, 1)


def test_i3_the_only_copy_of_a_message_that_would_return_is_dead_lettered() -> None:
    policy = CopyPolicy(dead_letters_returning=True)
    rewriter = MessageRewriter("jfk/flights", "ewr", policy=policy)
    verdict = rewriter.copy(stored(own=been("ewr/flights")), NOW_MS)
    assert isinstance(verdict, Refused)
    assert (verdict.disposition, verdict.reason, rewriter.looped) == ("dead-letter", VISITED, 1)
    assert copied(stored(7), rewriter) == copied(stored(7), MessageRewriter("jfk/flights", "ewr"))


def test_i3_another_entity_and_another_namespace_of_the_same_alias_are_no_return() -> None:
    copied(stored(own=been("ewr/bookings")), MessageRewriter("jfk/flights", "ewr"))
    copied(stored(own=been("ewr/flights")), MessageRewriter("jfk/flights", "ewr", target_namespace="other"))
    verdict = MessageRewriter("jfk/Flights", "EWR", target_namespace="ewr").copy(
        stored(own=been("ewr/flights")), NOW_MS
    )
    assert isinstance(verdict, Refused)


@pytest.mark.parametrize(
    "message",
    [
        {"own": {"repl-origin": "jfk/flights", "repl-sequence": "1"}},
        {"body": b"another"},
        {"properties": {"message_id": "m2"}},
        {"properties": {}},
    ],
)
def test_i5_a_new_message_with_a_copys_properties_begins_its_provenance_here(message: dict[str, Any]) -> None:
    mark = Mark("isthmus-flights")
    copy = copied(
        stored(7, **{"own": been("jfk/flights") | {"isthmus-flights": "m1"}, **message}),
        MessageRewriter("ewr/flights", "jfk", mark=mark),
    )
    own = application(copy)
    assert (own["repl-origin"], own["repl-sequence"]) == ("ewr/flights", "7")
    assert own["isthmus-flights"] == section.decode_properties(copy, locate(copy).properties)["message_id"]
    assert provenance_of(copy) is not None


def test_a_copy_of_the_same_task_goes_no_further() -> None:
    own = been("ewr/flights") | {"isthmus-flights": "m1"}
    verdict = MessageRewriter("jfk/flights", "lga", mark=Mark("isthmus-flights")).copy(stored(own=own), NOW_MS)
    assert isinstance(verdict, Refused)
    assert (verdict.disposition, verdict.reason) == ("complete", COPIED)
    assert (
        application(copied(stored(own=own), MessageRewriter("jfk/flights", "lga", mark=Mark("other"))))["other"] == "m1"
    )


def test_steps_that_change_a_message_do_not_make_it_new() -> None:
    message = stored(own=been("ewr/flights"), body=b"changed")
    assert isinstance(MessageRewriter("jfk/flights", "ewr", trusts=True).copy(message, NOW_MS), Refused)


@given(st.binary(max_size=40), st.booleans(), st.sampled_from([None, Int(1), Int(0), "0", "m1"]))
def test_i6_every_copy_bears_the_mark(body: bytes, is_number: bool, present: object) -> None:
    own = {"gate": "A1"} if present is None else {"gate": "A1", "seen": present}
    rewriter = MessageRewriter("ewr/flights", "jfk", mark=Mark("seen", is_number=is_number))
    copies, refused = rewriter.copy_all(*joined([stored((1 << 33) + n, own=own, body=body) for n in (1, 2, 3)]), NOW_MS)
    assert not refused
    expected = "m1" if not is_number else 1
    assert {application(copy)["seen"] for copy in copies} == {expected}
    assert all(provenance_of(copy) is not None for copy in copies)


@pytest.mark.parametrize("is_number", [True, False])
def test_i6_the_name_of_the_mark_as_a_value_is_no_mark(is_number: bool) -> None:
    rewriter = MessageRewriter("ewr/flights", "jfk", mark=Mark("seen", is_number=is_number))
    copies, _ = rewriter.copy_all(*joined([stored((1 << 33) + n, own={"gate": "seen"}) for n in (1, 2, 3)]), NOW_MS)
    assert [application(copy)["seen"] for copy in copies] == [1 if is_number else "m1"] * 3


def test_where_nothing_keeps_keys_a_message_id_is_made_of_the_origin() -> None:
    def made(number: int, name: str, rewriter: MessageRewriter | None = None) -> tuple[str, dict[Any, Any]]:
        rewriter = rewriter or MessageRewriter("ewr/flights", "jfk", mark=Mark("seen"), makes_message_ids=True)
        copy = copied(stored(number, properties={"message_id": name, "subject": "s"}), rewriter)
        assert provenance_of(copy) is not None
        fields = section.decode_properties(copy, locate(copy).properties)
        assert (fields["subject"], application(copy)["seen"]) == ("s", fields["message_id"])
        return fields["message_id"], application(copy)

    first, own = made(1, "m")
    assert own["repl-message-id"] == "m"
    assert first == made(1, "m")[0]
    assert first != made(2, "m")[0]
    assert len(first) <= 128
    # A second hop keeps the sender's own, and the id, which is the origin's.
    onward = MessageRewriter("jfk/flights", "lga", makes_message_ids=True)
    copy = copied(stored(9, properties={"message_id": first, "subject": "s"}, own=own), onward)
    assert application(copy)["repl-message-id"] == "m"
    assert section.decode_properties(copy, locate(copy).properties)["message_id"] == first


def test_used_up_hops_are_dead_lettered() -> None:
    verdict = MessageRewriter("d/q", "e", hop_budget=3).copy(stored(own=been("a/q", "b/q", "c/q")), NOW_MS)
    assert isinstance(verdict, Refused)
    assert (verdict.disposition, verdict.reason) == ("dead-letter", HOPS_USED_UP)


@pytest.mark.parametrize("mark", [None, Mark("m")])
def test_a_property_without_a_name_stays(mark: Mark | None) -> None:
    """Where copies have no mark, it was taken for the mark, and the copy did not have it."""
    copy = MessageRewriter("ewr/q", "lga", mark=mark).copy(stored(own={"": Int(5), "a": "b"}), NOW_MS)
    assert isinstance(copy, bytes)
    assert (application(copy)[""], application(copy)["a"]) == (5, "b")


def test_rule_name_goes_as_a_key_only() -> None:
    own = {"note": "RuleName", "RuleName": "replication", "raw": b"\xa1\x08RuleName\xa1\x01x", "replication": Int(1)}
    for sequence in (7, 1 << 33):
        rewriter = MessageRewriter("ewr/flights", "jfk")
        copies, _ = rewriter.copy_all(*joined([stored(sequence, own=own)] * 3), NOW_MS)
        for copy in copies:
            left = application(copy)
            assert "RuleName" not in left
            assert (left["note"], left["raw"], left["replication"]) == (own["note"], own["raw"], 1)


def test_the_brokers_annotations_go_and_the_senders_stay() -> None:
    copy = copied(stored(annotations={"x-opt-partition-key": "pk", "x-opt-message-state": Int(0), "mine": Symbol("s")}))
    assert section.decode_map(copy, locate(copy).message_annotations) == {"x-opt-partition-key": "pk", "mine": "s"}


def test_remaining_time_to_live_is_recomputed_and_delivery_count_dropped_i4() -> None:
    waited = NOW_MS - ENQUEUED_MS
    for ttl_ms, left in ((waited + 5000, 5000), (waited - 5000, 1), (None, None), (0xFFFFFFFF, None)):
        rewriter = MessageRewriter("ewr/flights", "jfk")
        for _ in range(3):
            copy = copied(stored(header=Header(True, 4, ttl_ms, False, 3)), rewriter)
            assert section.decode_header(copy, locate(copy).header) == Header(True, 4, left, False, 0)


def test_i7_a_message_that_was_enqueued_at_an_unknown_time_keeps_its_time_to_live() -> None:
    """As an event without a time: the second copy expired at once, where the first kept all of it."""
    unknown = {"x-opt-enqueued-time": Timestamp(0)}
    message = stored(header=Header(True, 4, 60_000, False, 0), annotations=unknown)
    copies, _ = MessageRewriter("ewr/q", "lga").copy_all(message * 4, [at * len(message) for at in range(5)], NOW_MS)
    assert [section.decode_header(copy, locate(copy).header).ttl_ms for copy in copies] == [60_000] * 4


def test_a_missing_message_id_is_made_of_the_duplicate_key() -> None:
    """A detection by MessageId at the target must not take two messages of the same number for one."""
    copy = copied(stored(7, properties={"subject": "s"}))
    made = made_message_id(key_of(copy))
    assert section.decode_properties(copy, locate(copy).properties) == {"message_id": made, "subject": "s"}
    copy = copied(section.encode_message(b"x", annotations={"x-opt-sequence-number": Long(5)}))
    made = made_message_id(key_of(copy))
    assert section.decode_properties(copy, locate(copy).properties) == {"message_id": made}


def test_without_an_origin_only_the_broker_is_taken_out() -> None:
    copy = copied(stored(own={"a": "b"}), MessageRewriter(""))
    assert application(copy) == {"a": "b"}
    assert "message_annotations" in locate(copy)._fields
    assert locate(copy).message_annotations == (0, 0)


def joined(messages: list[bytes]) -> tuple[bytes, list[int]]:
    offsets = [0]
    for message in messages:
        offsets.append(offsets[-1] + len(message))
    return b"".join(messages), offsets


some_message = st.builds(
    stored,
    st.integers(1, 2**62),
    topic_sequence=st.none() | st.integers(1, 2**62),
    header=st.builds(
        Header,
        st.booleans(),
        st.integers(0, 255),
        st.none() | st.integers(1, 2**32 - 1),
        st.just(False),
        st.integers(0, 9),
    )
    | st.none(),
    own=st.dictionaries(names | st.just("RuleName"), values, max_size=6) | st.none(),
    annotations=st.dictionaries(
        st.sampled_from(["x-opt-partition-key", "mine", "x-opt-deadletter-source", "number"]),
        st.text() | st.integers(-(2**31), 2**31 - 1).map(Int),
    ),
    properties=st.fixed_dictionaries(
        {}, optional={"message_id": st.text(max_size=300) | st.uuids(), "subject": st.text(), "group_id": st.text()}
    )
    # As of a Kafka record.
    | st.fixed_dictionaries(
        {"creation_time": st.integers(0, 2**62).map(Timestamp)},
        optional={"group_id": st.text(max_size=8) | st.text("key", min_size=140, max_size=260)},
    ),
    body=st.binary(max_size=400),
)


@given(st.lists(some_message, min_size=1, max_size=8).map(lambda several: several * 3))
def test_the_fast_path_and_the_general_path_agree_and_keep_the_senders_sections_i1(messages: list[bytes]) -> None:
    quick = MessageRewriter("ewr/flights", "jfk", mark=Mark("seen"))
    copies, refused = quick.copy_all(*joined(messages), NOW_MS)
    assert not refused
    for message, copy in zip(messages, copies, strict=True):
        general = MessageRewriter("ewr/flights", "jfk", mark=Mark("seen")).copy(message, NOW_MS)
        assert isinstance(general, bytes)
        before, after, other = locate(message), locate(copy), locate(general)
        assert application(copy) == application(general)
        for path in ("header", "message_annotations", "properties", "body", "footer"):
            assert copy[slice(*getattr(after, path))] == general[slice(*getattr(other, path))]
        assert copy[slice(*after.body)] == message[slice(*before.body)]
        own = {k: v for k, v in application(message).items() if k != "RuleName"}
        kept = {k: v for k, v in application(copy).items() if not k.startswith("repl-") and k != "seen"}
        assert provenance_of(copy) is not None
        assert kept == own
        assert {k: type(v) for k, v in kept.items()} == {k: type(v) for k, v in own.items()}


class NoLayouts(Layouts):
    """Learns none."""

    def of(self, *_: Any) -> None:
        return None


# As senders make them: alike but for numbers, ids, contents of the same size, and bodies.
alike = st.builds(
    lambda sequence, name, subject, value, body, header: stored(
        sequence,
        header=header,
        own={"a": value, "RuleName": "r"} if value == "rule" else {"a": value} if value else None,
        properties={"message_id": name, "subject": subject},
        body=body,
    ),
    st.sampled_from([10**12 - 1, 10**12, 10**12 + 1, 2**62]),
    st.sampled_from(["id-1", "id-2", "id-3 is longer"]),
    st.sampled_from(["one", "two"]),
    st.sampled_from(["", "text", "TEXT", "rule", "repl", "repl-"]),
    st.binary(max_size=8) | st.binary(min_size=250, max_size=260),
    st.sampled_from([STORED_HEADER, Header(True, 4, 5000, False, 0)]),
)


@given(st.lists(st.tuples(alike, st.integers(1, 4)), min_size=1, max_size=6), st.booleans(), st.sampled_from("01"))
def test_what_is_laid_out_as_before_is_copied_as_by_the_other_paths_i7(
    runs: list[tuple[bytes, int]], trusts: bool, mark: str
) -> None:
    messages = [message for message, count in runs for _ in range(count)]
    marks = {"0": Mark("seen"), "1": Mark("seen", is_number=True)}
    by_layout = MessageRewriter("ewr/flights", "jfk", mark=marks[mark], trusts=trusts)
    without = MessageRewriter("ewr/flights", "jfk", mark=marks[mark], trusts=trusts)
    without._layouts = NoLayouts()
    assert by_layout.copy_all(*joined(messages), NOW_MS) == without.copy_all(*joined(messages), NOW_MS)
    for message, copy in zip(messages, by_layout.copy_all(*joined(messages), NOW_MS)[0], strict=False):
        general = MessageRewriter("ewr/flights", "jfk", mark=marks[mark], trusts=trusts).copy(message, NOW_MS)
        assert isinstance(general, bytes)
        assert application(copy) == application(general)
        assert copy[slice(*locate(copy).body)] == message[slice(*locate(message).body)]


@pytest.mark.parametrize("mark", [None, Mark("seen", is_number=True)])
def test_properties_that_differ_in_each_message_have_a_layout_as_well_i7(mark: Mark | None) -> None:
    """Provenance, `RuleName` and another mark among them are found all the same."""
    own = [{"a": f"{number:08d}"} for number in range(6)]
    own[4] = {"a": "repl-abc"}
    run = [stored(10**12 + number, own=each, body=bytes(300)) for number, each in enumerate(own)]
    rewriter = MessageRewriter("ewr/flights", "jfk", mark=mark)
    learned: list[Any] = []

    class Counted(Layouts):
        def of(self, *given: Any) -> Any:
            learned.append(given)
            return super().of(*given)

    rewriter._layouts = Counted()
    copies, _ = rewriter.copy_all(*joined(run), NOW_MS)
    assert len(learned) == 3  # two of the first, and the one after the general path
    for message, copy in zip(run, copies, strict=True):
        single = MessageRewriter("ewr/flights", "jfk", mark=mark).copy(message, NOW_MS)
        assert isinstance(single, bytes)
        assert application(copy) == application(single)


def test_annotations_of_the_sender_that_differ_are_those_of_their_message_i1() -> None:
    """Equal ones are not put together again for each message."""
    keys = ["a1", "a1", "a1", "b2", "b2", "a1", "b2"]
    run = [stored(10**12 + number, annotations={"x-routing-key": key}) for number, key in enumerate(keys)]
    copies, _ = MessageRewriter("ewr/flights", "jfk").copy_all(*joined(run), NOW_MS)
    assert [section.decode_map(copy, locate(copy).message_annotations)["x-routing-key"] for copy in copies] == keys


def test_messages_of_one_sender_are_taken_apart_by_their_layout_i7() -> None:
    rewriter = MessageRewriter("ewr/flights", "jfk", mark=Mark("seen", is_number=True))
    run = [stored(number, own={"a": "b"}, body=bytes(300 + number % 7)) for number in range(10**12 - 3, 10**12 + 3)]
    copies, _ = rewriter.copy_all(*joined(run), NOW_MS)
    learned = [layout.body for layout in rewriter._layouts._known.values()]
    assert len(learned) == 1
    for number, copy in enumerate(copies, 10**12 - 3):
        single = MessageRewriter("ewr/flights", "jfk", mark=Mark("seen", is_number=True)).copy(
            run[number - 10**12 + 3], NOW_MS
        )
        assert isinstance(single, bytes)
        assert application(copy) == application(single)
        assert application(copy)["repl-sequence"] == str(number)


def test_a_uuid_message_id_stays_a_uuid() -> None:
    name = uuid.uuid4()
    copy = copied(stored(properties={"message_id": name}))
    assert section.decode_properties(copy, locate(copy).properties)["message_id"] == name


def test_what_cannot_be_read_continues_as_it_came_i1() -> None:
    message = stored(properties={"message_id": "id", "subject": "text"}).replace(b"text", b"\xff\xff\xff\xff")
    copy = MessageRewriter("ewr/flights", "jfk").copy(message, NOW_MS)
    assert isinstance(copy, bytes)
    assert copy[slice(*locate(copy).properties)] == message[slice(*locate(message).properties)]
    broken = stored(own={"repl-mine": 1}).replace(b"repl-mine", b"repl-min\xff")
    copy = MessageRewriter("ewr/flights", "jfk").copy(broken, NOW_MS)
    assert isinstance(copy, bytes)
    assert b"repl-min\xff" in copy


def test_provenance_that_cannot_be_read_is_none() -> None:
    broken = stored(2, own={"repl-origin": "text"}).replace(b"text", b"\xff\xff\xff\xff")
    messages = [stored(1), broken, stored(3)]
    offsets = [0, *(sum(map(len, messages[: i + 1])) for i in range(3))]
    copies, refused = MessageRewriter("ewr/flights", "jfk").copy_all(b"".join(messages), offsets, NOW_MS)
    assert [application(copy)["repl-sequence"] for copy in copies] == ["1", "2", "3"]
    assert not refused


def test_what_is_no_message_is_dead_lettered_and_stops_no_other() -> None:
    messages = [stored(1), b"\0Sp\xff" + bytes(40), stored(3)]
    copies, refused = MessageRewriter("ewr/flights", "jfk").copy_all(*joined(messages), NOW_MS)
    assert [application(copy)["repl-sequence"] for copy in copies] == ["1", "3"]
    ((row, disposition, reason, _),) = refused
    assert (row, disposition, reason) == (1, "dead-letter", MALFORMED)


@pytest.mark.parametrize("trusts", [False, True])
@pytest.mark.parametrize("missing", HOP_PROPERTIES)
def test_a_message_with_parts_of_a_provenance_is_new(missing: str, trusts: bool) -> None:
    """An application sends a copy again, and takes only some of its properties along."""
    reported = dict(zip(HOP_PROPERTIES, ("jfk/flights", "J", "7", "7", ISO), strict=True)) | {
        DIGEST: digest(b"m1", b"body")
    }
    del reported[missing]
    rewriter = MessageRewriter("ewr/flights", "lga", origin_namespace="E", target_namespace="L", trusts=trusts)
    copies, refused = rewriter.copy_all(stored(own=reported), [0, len(stored(own=reported))], NOW_MS)
    assert not refused
    found = section.decode_map(copies[0], locate(copies[0]).application_properties)
    assert found["repl-origin"] == "ewr/flights"


def test_a_time_before_all_times_is_reported_as_any_other() -> None:
    """Kafka's "no timestamp" is -1."""
    rewriter = MessageRewriter("ewr/flights", "lga", origin_namespace="E")
    message = stored(annotations={"x-opt-enqueued-time": Timestamp(-1)})
    copies, refused = rewriter.copy_all(message * 2, [0, len(message), 2 * len(message)], NOW_MS)
    assert not refused
    reported = [section.decode_map(each, locate(each).application_properties) for each in copies]
    assert [each["repl-enqueued-time"] for each in reported] == ["1969-12-31T23:59:59.999Z"] * 2


def test_whatever_no_copy_can_be_made_of_is_dead_lettered_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    rewriter = MessageRewriter("ewr/flights", "lga", origin_namespace="E")
    make = rewriter._general.make

    def fails(data: bytes, start: int, end: int, now_ms: int) -> Any:
        if b"odd" in data[start:end]:
            raise KeyError("a fault of ours")
        return make(data, start, end, now_ms)

    monkeypatch.setattr(rewriter._general, "make", fails)
    messages = [stored(1), stored(2, body=b"odd", own={"repl-x": 1}), stored(3)]
    offsets = [0, *(len(b"".join(messages[:count])) for count in (1, 2, 3))]
    copies, refused = rewriter.copy_all(b"".join(messages), offsets, NOW_MS)
    assert len(copies) == 2
    assert [(each.row, each.disposition, each.reason) for each in refused] == [(1, "dead-letter", MALFORMED)]


@pytest.mark.parametrize(
    "own",
    [
        b"\0St\xc1\0",  # without a count
        b"\0St\xd1\0\0\0\0",
        b"\0St\xc1\x1b\4\xa1\x08RuleName\xa1\xc1$Default\xa1\1k\xa1\1v",  # a value that is longer than all of them
        b"\0St\xc1\x13\4\xa1\1mU\1\3\1z\xa1\x08RuleName",  # no value of AMQP
        b"\0St\xc1\x13\4\xa1\1mU\1\xa1\xd1z\xa1\x08RuleName",
    ],
)
def test_wrong_sizes_within_a_message_stop_no_other(own: bytes) -> None:
    """A namespace takes such messages: it looks at their sections, and not into them."""
    plain = stored(own={"a": "b"})
    at, end = locate(plain).application_properties
    messages = [stored(1), *[plain[:at] + own + plain[end:]] * 4, stored(3)]
    rewriter = MessageRewriter("ewr/flights", "jfk", mark=Mark("seen", is_number=True))
    copies, refused = rewriter.copy_all(*joined(messages), NOW_MS)
    assert [each.row for each in refused] == [1, 2, 3, 4]
    assert {(each.disposition, each.reason) for each in refused} == {("dead-letter", MALFORMED)}
    assert [application(copy)["repl-sequence"] for copy in copies] == ["1", "3"]


def test_a_message_id_longer_than_the_properties_stops_no_other() -> None:
    plain = stored(properties={"message_id": "abc", "subject": "x"})
    at = plain.index(b"\xa1\3abc")
    messages = [stored(1), *[plain[: at + 1] + b"\xc8" + plain[at + 2 :]] * 4, stored(3)]
    copies, _ = MessageRewriter("ewr/flights", "jfk").copy_all(*joined(messages), NOW_MS)
    assert [application(copies[at])["repl-sequence"] for at in (0, -1)] == ["1", "3"]


@pytest.mark.parametrize("trusts", [False, True])
def test_each_copy_that_a_rule_made_has_a_key_of_its_own_where_an_applications_entity_is_emptied_i8(
    trusts: bool,
) -> None:
    """They have the number in the topic, the time, the MessageId and the body of one message."""
    rules = ({"n": 1}, {"n": 1, "RuleName": "heavy"}, {"n": "new", "RuleName": "all"})
    messages = [
        stored(sequence, topic_sequence=7, own=own, properties={"message_id": "1"})
        for sequence, own in enumerate([{"n": 1}, *rules, *rules], start=7)
    ]
    offsets = [0]
    for each in messages:
        offsets.append(offsets[-1] + len(each))
    for policy, count in ((CopyPolicy(dead_letters_returning=True), 3), (CopyPolicy(), 1)):
        rewriter = MessageRewriter("ewr/orders", origin_namespace="N", trusts=trusts, policy=policy)
        copies, refused = rewriter.copy_all(b"".join(messages), offsets, NOW_MS)
        assert not refused
        keys = [duplicate_key(each, *locate(each).application_properties) for each in copies]
        assert keys[1:4] == keys[4:7]  # sent again, it has the same
        assert len(set(keys)) == count
        for each in copies:
            assert "RuleName" not in section.decode_map(each, locate(each).application_properties)
