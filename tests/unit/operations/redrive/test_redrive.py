"""The results of redriven messages, and their counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Self

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Long, Symbol
from isthmus.bridge.delivery_event import Disposition
from isthmus.entities.queue.run import RunSet
from isthmus.errors import ConnectionLostError, EntityDisabledError, ServerBusyError
from isthmus.message import name as names
from isthmus.operations.copy_target import Kept, Sent, TargetGoneError
from isthmus.operations.redrive import leg as leg_module
from isthmus.operations.redrive import redrive, set_aside
from isthmus.operations.redrive.leg import Leg, Legs
from isthmus.operations.redrive.redrive import _Cleaned
from isthmus.operations.redrive.set_aside import Choice, SetAside, count_queue
from isthmus.operations.removal.sweep import Taken


class Between(Legs):
    """Legs that are there."""

    def __init__(self, legs: dict[str, list[Leg]]) -> None:
        super().__init__([], legs)
        self.legs = legs

    def of(self, origin: str | None, meanwhile: Callable[[], None] = lambda: None) -> list[Leg]:
        return self.legs[min(self.legs) if origin is None else origin]


class Taking:
    """A target that takes everything."""

    failure = ""

    def send(self, payloads: Sequence[bytes], meanwhile: Callable[[], None]) -> list[Sent]:
        return [Sent() for _ in payloads]


class Dropping:
    """A step that drops what it is set to."""

    name = "drop"


@pytest.mark.parametrize("completed", [0, 1, 2, 3])
def test_what_lost_its_lock_counts_neither_as_sent_nor_as_dropped(
    monkeypatch: pytest.MonkeyPatch, completed: int
) -> None:
    def sweep(client: Any, path: str, wanted: RunSet, take: Any, **_: Any) -> int:
        taken = [Taken(number, b"", section.encode_message(b"x")) for number in range(3)]
        assert len(take(taken, lambda: None)) == 3
        return completed

    monkeypatch.setattr(redrive, "sweep_entity", sweep)
    drops = iter((Disposition("complete"), Disposition("complete"), None))
    monkeypatch.setattr(redrive, "guarded", lambda step, message: next(drops))
    chosen = RunSet()
    chosen.add(1, 3)
    target: Any = Taking()
    step: Any = Dropping()
    client: Any = None
    legs = Between({"": [Leg("r", target, [step])]})
    done = redrive._Pass(legs, _Cleaned, chosen, lambda count: None).carry(client, "q")
    assert done.sent >= 0
    assert (done.sent + done.dropped, done.left, done.refused) == (completed, 3 - completed, 0)


def test_a_queue_that_is_lost_half_way_shows_what_the_target_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(client: Any, path: str, wanted: RunSet, take: Any, **_: Any) -> int:
        take([Taken(number, b"", section.encode_message(b"x")) for number in range(2)], lambda: None)
        error = ConnectionLostError("gone")
        error.attributes["completed"] = 1
        raise error

    monkeypatch.setattr(redrive, "sweep_entity", sweep)
    chosen = RunSet()
    chosen.add(1, 3)
    target: Any = Taking()
    client: Any = None
    done = redrive._Pass(Between({"": [Leg("r", target, [])]}), _Cleaned, chosen, lambda count: None).carry(client, "q")
    assert done.failure == "gone; the target had acknowledged 2 copies by then"
    assert (done.sent, done.left) == (1, 2)


def test_what_was_acknowledged_before_a_renewal_failed_leaves_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy namespace refuses a renewal, and takes settlements all the same."""
    monkeypatch.setattr(redrive, "_AT_ONCE", 2)

    def renew() -> None:
        raise ServerBusyError("busy")

    def sweep(client: Any, path: str, wanted: RunSet, take: Any, **_: Any) -> int:
        return len(take([Taken(number, b"", section.encode_message(b"x")) for number in range(3)], renew))

    monkeypatch.setattr(redrive, "sweep_entity", sweep)
    chosen = RunSet()
    chosen.add(1, 3)
    target: Any = Taking()
    client: Any = None
    done = redrive._Pass(Between({"": [Leg("r", target, [])]}), _Cleaned, chosen, lambda count: None).carry(client, "q")
    assert (done.sent, done.left, done.failure) == (2, 1, "the source was lost: busy")
    assert not chosen


def test_after_a_stop_nothing_more_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive, "_AT_ONCE", 2)

    def sweep(client: Any, path: str, wanted: RunSet, take: Any, **_: Any) -> int:
        return len(take([Taken(number, b"", section.encode_message(b"x")) for number in range(5)], lambda: None))

    monkeypatch.setattr(redrive, "sweep_entity", sweep)
    chosen = RunSet()
    chosen.add(1, 5)
    target: Any = Taking()
    client: Any = None
    answers = iter((False, True))
    pass_ = redrive._Pass(
        Between({"": [Leg("r", target, [])]}), _Cleaned, chosen, lambda count: None, lambda: next(answers)
    )
    done = pass_.carry(client, "q")
    assert (done.sent, done.left, done.failure) == (2, 3, "")
    assert not chosen


def test_a_target_that_is_unavailable_when_messages_of_another_namespace_come_leaves_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sweep(client: Any, path: str, wanted: RunSet, take: Any, **_: Any) -> int:
        return len(take([Taken(number, b"", f"{number}".encode()) for number in range(4)], lambda: None))

    monkeypatch.setattr(redrive, "sweep_entity", sweep)
    asked: list[str | None] = []

    class Leaving(Between):
        def of(self, origin: str | None, meanwhile: Callable[[], None] = lambda: None) -> list[Leg]:
            asked.append(origin)
            if origin != "a":
                raise TargetGoneError("away")
            return super().of(origin, meanwhile)

    chosen = RunSet()
    chosen.add(1, 4)
    target: Any = Taking()
    client: Any = None
    legs = Leaving({each: [Leg("r", target, [])] for each in "abc"})
    origins = iter("aabc")
    pass_ = redrive._Pass(legs, lambda payload: _Cleaned(payload, next(origins)), chosen, lambda count: None)
    done = pass_.carry(client, "q")
    assert (done.sent, done.left, done.refused, done.failure, asked) == (2, 2, 0, "away", ["a", "b"])


def test_a_queue_that_gives_nothing_shows_why_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(*_: Any, **__: Any) -> int:
        raise EntityDisabledError("q", "disabled")

    monkeypatch.setattr(redrive, "sweep_entity", sweep)
    chosen = RunSet()
    chosen.add(1, 3)
    target: Any = Taking()
    client: Any = None
    legs = Between({"": [Leg("r", target, [])]})
    done = redrive._Pass(legs, _Cleaned, chosen, lambda count: None).carry(client, "q")
    assert (done.sent, done.left, done.failure) == (0, 3, str(EntityDisabledError("q", "disabled")))


class Answering:
    """A target with an answer for each message."""

    def __init__(self, *verdicts: Sent | Kept, failure: str = "") -> None:
        self.verdicts = list(verdicts)
        self.failure = failure

    def send(self, payloads: Sequence[bytes], meanwhile: Callable[[], None]) -> list[Sent | Kept]:
        return self.verdicts[: len(payloads)]


@pytest.mark.parametrize(
    ("first", "second", "counts"),
    [
        (Sent(), Sent(), (1, 0, 0, 0)),
        (Sent(), Kept("no"), (0, 0, 1, 0)),
        (Kept("no"), Kept("no"), (0, 0, 1, 0)),
        (Sent(), Kept("Visited", is_there=True), (1, 0, 0, 0)),
        (Kept("Visited", is_there=True), Kept("Visited", is_there=True), (0, 0, 1, 0)),
        (Kept("Visited", is_there=True), Kept("no"), (0, 0, 1, 0)),
    ],
)
def test_i3_a_message_leaves_once_all_targets_are_done_with_it(
    monkeypatch: pytest.MonkeyPatch, first: Sent | Kept, second: Sent | Kept, counts: tuple[int, ...]
) -> None:
    def sweep(client: Any, path: str, wanted: RunSet, take: Any, **_: Any) -> int:
        return len(take([Taken(1, b"", section.encode_message(b"x"))], lambda: None))

    monkeypatch.setattr(redrive, "sweep_entity", sweep)
    chosen = RunSet()
    chosen.add(1, 1)
    legs: Any = {"": [Leg("a", Answering(first), []), Leg("b", Answering(second), [])]}  # type: ignore[arg-type]
    client: Any = None
    done = redrive._Pass(Between(legs), _Cleaned, chosen, lambda count: None).carry(client, "q")
    assert (done.sent, done.dropped, done.refused, done.left) == counts


def test_i3_what_one_target_did_not_get_since_it_was_removed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(client: Any, path: str, wanted: RunSet, take: Any, **_: Any) -> int:
        return len(take([Taken(1, b"", section.encode_message(b"x"))], lambda: None))

    monkeypatch.setattr(redrive, "sweep_entity", sweep)

    class Leaving(Answering):
        def send(self, payloads: Sequence[bytes], meanwhile: Callable[[], None]) -> list[Sent | Kept]:
            self.failure = "away"
            return super().send(payloads, meanwhile)

    away = Leaving(Kept("away"))
    chosen = RunSet()
    chosen.add(1, 1)
    legs: Any = {"": [Leg("a", Answering(Sent()), []), Leg("b", away, [])]}  # type: ignore[arg-type]
    client: Any = None
    done = redrive._Pass(Between(legs), _Cleaned, chosen, lambda count: None).carry(client, "q")
    assert (done.sent, done.refused, done.left, done.failure) == (0, 0, 1, "away")


def test_a_diverted_message_of_a_namespace_without_identity_is_sent_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    hop = ("ewr/flights", "", "7", "7", "2026-01-01T00:00:00.000Z")
    own = dict(zip(names.HOP_PROPERTIES, hop, strict=True)) | {names.WHY_ROUTE: "r"}
    payload = section.encode_message(
        b"x", annotations={Symbol("x-opt-sequence-number"): Long(1)}, application_properties=own
    )
    monkeypatch.setattr(set_aside, "messages", lambda client, path: iter([payload]))
    source = SimpleNamespace(alias="ewr")
    each: Any = SimpleNamespace(
        source=SimpleNamespace(entity="q"),
        is_parking=False,
        is_diverted=True,
        known={"r"},
        route=SimpleNamespace(source=source, entered="flights"),
        routes=[SimpleNamespace(name="r")],
    )
    client: Any = None
    found = count_queue(client, each, Choice())
    assert (found.chosen.count(), found.origins) == (1, {""})
    monkeypatch.setattr(
        redrive,
        "sweep_entity",
        lambda client, path, wanted, take, **_: len(take([Taken(1, b"", payload)], lambda: None)),
    )
    other: Any = Answering(Kept("another's"))
    own_target: Any = Taking()
    legs = {"ewr-1": [Leg("r", other, [])], "": [Leg("r", own_target, [])]}
    done = redrive._Pass(Between(legs), redrive._cleaned(each, Choice()), found.chosen, lambda count: None).carry(
        client, "q"
    )
    assert (done.sent, done.refused) == (1, 0)
    # It had another provenance when it was looked at.
    done = redrive._Pass(
        Between({"ewr-1": [Leg("r", own_target, [])]}),
        redrive._cleaned(each, Choice()),
        found.chosen,
        lambda count: None,
    ).carry(client, "q")
    assert (done.sent, done.refused) == (0, 1)


@pytest.mark.parametrize(("reported", "targets"), [({}, ["r"]), ({names.NAMESPACE_ID: "ops-1"}, ["r", "other"])])
def test_where_nothing_knows_copies_by_their_origin_a_message_goes_to_its_own_target(
    monkeypatch: pytest.MonkeyPatch, reported: dict[str, str], targets: list[str]
) -> None:
    """A client has an identity of each peer: the name of its host, where the peer sends none."""
    hop = ("ewr/flights", "ewr-1", "7", "7", "2026-01-01T00:00:00.000Z")
    own = dict(zip(names.HOP_PROPERTIES, hop, strict=True)) | {names.WHY_ROUTE: "r"}
    payload = section.encode_message(b"x", application_properties=own)
    client: Any = SimpleNamespace(namespace_id="ops.example", peer_properties=reported, close=lambda seconds: None)
    options = SimpleNamespace(steps=())
    source = SimpleNamespace(alias="ewr")
    routes = [SimpleNamespace(name=name, options=options, source=source, entered="flights") for name in ("r", "other")]
    each: Any = SimpleNamespace(
        source=SimpleNamespace(entity="q"),
        is_parking=False,
        is_diverted=True,
        may_be_apart=True,
        known={"r", "other"},
        route=routes[0],
        routes=routes,
    )
    sent: list[str] = []

    class Noting(Taking):
        def __init__(self, spec: Any, origin: str, *, meanwhile: Any) -> None:
            self.name = spec.name

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def send(self, payloads: Sequence[bytes], meanwhile: Callable[[], None]) -> list[Sent]:
            sent.append(self.name)
            return super().send(payloads, meanwhile)

    monkeypatch.setattr(leg_module, "CopyTarget", Noting)
    monkeypatch.setattr(redrive, "route_spec", lambda route, federation: route)
    monkeypatch.setattr(
        redrive,
        "sweep_entity",
        lambda client, path, wanted, take, **_: len(take([Taken(1, b"", payload)], lambda: None)),
    )
    found = SetAside(origins={"ewr-1"})
    found.chosen.add(1, 1)
    clients: Any = SimpleNamespace(open=lambda end: client)
    federation: Any = None
    assert redrive.redrive(clients, federation, each, found, Choice()).sent == 1
    assert sent == targets
