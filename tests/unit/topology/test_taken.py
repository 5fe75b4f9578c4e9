"""Two tasks, of any patterns, that consume from one entity."""

from __future__ import annotations

import pytest

from isthmus.topology import lint
from isthmus.topology.linter import warnings

HEAD = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\n  hub: {kind: kafka, bootstrap: 'a:1'}\ntasks:\n"
STREAM = "{pattern: queue-to-stream, source: ewr, queue: q, target: hub, stream: s}"


@pytest.mark.parametrize(
    ("first", "second", "reported"),
    [
        ("{pattern: move, source: ewr, target: jfk, queue: Q}", STREAM, "consumes from ewr/q already"),
        ("{pattern: archive, source: ewr, queue: q, table: t}", STREAM, "consumes from ewr/q already"),
        (STREAM.replace("queue: q,", "queue: Q,"), STREAM, "consumes from ewr/q already"),
        (
            "{pattern: archive, source: hub, stream: s, group: g, table: t}",
            "{pattern: stream-to-queue, source: hub, stream: s, group: g, target: ewr, queue: q}",
            "consumes from hub/s already",
        ),
        # A queue that forwards cannot be received from.
        ("{pattern: chain, members: [ewr], forward: {q: other}}", STREAM, "queue q with ForwardTo other and none"),
        ("{pattern: split, source: ewr, queue: q, targets: [{to: jfk, queue: a}]}", STREAM, "ForwardTo isthmus.a"),
    ],
)
def test_each_message_would_go_to_one_of_them_only(first: str, second: str, reported: str) -> None:
    faults = [str(each) for each in lint(HEAD + f"  a: {first}\n  b: {second}\n")]
    assert len(faults) == 1, faults
    assert reported in faults[0]


def test_tasks_that_read_one_topic_or_stream_each_on_their_own_are_none() -> None:
    tasks = [
        "{pattern: queue-to-stream, source: ewr, topic: q, target: hub, stream: s}",
        "{pattern: copy, source: ewr, target: jfk, topic: q}",
        "{pattern: archive, source: ewr, topic: q, table: t}",
        "{pattern: archive, source: hub, stream: s, table: u}",
        "{pattern: stream-to-queue, source: hub, stream: s, target: ewr, queue: r}",
    ]
    assert lint(HEAD + "".join(f"  t{at}: {task}\n" for at, task in enumerate(tasks))) == []


TWO = HEAD.replace("  hub:", "  iot: {kind: kafka, bootstrap: 'b:1'}\n  hub:")
FROM = "{pattern: stream-to-queue, source: %s, stream: s, target: ewr, queue: %s%s}"


@pytest.mark.parametrize(
    ("first", "second", "reported"),
    [
        (("hub", "q", ""), ("iot", "Q", ""), True),
        (("hub", "q", ", duplicate_detection: off"), ("iot", "q", ""), True),
        (("hub", "q", ", duplicate_detection: off"), ("iot", "q", ", duplicate_detection: off"), False),
        (("hub", "q", ""), ("iot", "r", ""), False),
        # What one stream gives twice is the same message.
        (("hub", "q", ""), ("hub", "q", ", group: g"), False),
    ],
)
def test_streams_of_one_name_that_detection_would_take_for_one(
    first: tuple[str, str, str], second: tuple[str, str, str], reported: bool
) -> None:
    """A MessageId is made of stream, partition and offset: records of two clusters have equal ones."""
    faults = [str(each) for each in lint(TWO + f"  a: {FROM % first}\n  b: {FROM % second}\n")]
    assert len(faults) == reported, faults
    if reported:
        assert "have equal MessageIds" in faults[0]


@pytest.mark.parametrize(
    ("first", "second", "reported"),
    [
        (
            "{pattern: all-active, topic: F, members: [ewr, jfk]}",
            "{pattern: copy, source: ewr, target: jfk, topic: f}",
            True,
        ),
        (
            "{pattern: copy, source: ewr, target: jfk, topic: f, target_queue: q, action: 'SET a = 1'}",
            "{pattern: copy, source: ewr, target: jfk, topic: f, target_queue: q, action: 'SET a = 2'}",
            True,
        ),
        (
            "{pattern: copy, source: ewr, target: jfk, topic: f, filter: 'a = 1'}",
            "{pattern: copy, source: ewr, target: jfk, topic: f, filter: 'a = 2'}",
            False,
        ),
        (
            "{pattern: copy, source: ewr, target: jfk, topic: f}",
            "{pattern: copy, source: jfk, target: ewr, topic: f}",
            False,
        ),
        (
            "{pattern: copy, source: ewr, target: jfk, topic: f}",
            "{pattern: copy, source: ewr, target: jfk, topic: g}",
            False,
        ),
    ],
)
def test_two_tasks_that_bring_a_message_to_one_place_are_warned_of(first: str, second: str, reported: bool) -> None:
    """The second copy is dropped where copies are known by origin, also where it was to be another one; elsewhere it is there twice."""
    text = HEAD + f"  a: {first}\n  b: {second}\n"
    assert not lint(text)
    found = [str(each) for each in warnings(text) if "both bring messages of ewr/" in str(each)]
    assert len(found) == reported, found
