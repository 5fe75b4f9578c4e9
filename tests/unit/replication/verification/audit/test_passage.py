"""What waits at the routes of a task, as the audit reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from isthmus.amqp import section
from isthmus.amqp.types import Long, Symbol
from isthmus.errors import EntityNotFoundError
from isthmus.replication.verification.audit.passage import Passage, Peek, SourceReader
from isthmus.replication.verification.identity import Identity, identify
from isthmus.topology.model import Endpoint, LogOptions, Route, RouteOptions

LOG = Endpoint("hub", "flights")


def message(number: int) -> bytes:
    return section.encode_message(b"x", annotations={Symbol("x-opt-sequence-number"): Long(number)})


def route(target: str) -> Route:
    options = RouteOptions(log=LogOptions(group=f"isthmus.t.{target}"))
    return Route(
        name=f"t.hub.{target}",
        task="t",
        pattern="all-active",
        source=LOG,
        targets=(Endpoint(target, "flights"),),
        options=options,
    )


class Logs:
    """One log, of which each group has committed as far as it is set."""

    def __init__(self, committed: dict[str, int]) -> None:
        self.committed = committed

    def waiting(self, of: Route) -> Peek:
        first = self.committed[of.options.log.group]

        def peek(start: int, count: int) -> Sequence[bytes]:
            return [message(number) for number in range(max(start, first), 5)][:count]

        return peek

    def is_placed(self, of: Route) -> bool:
        return True

    def set_aside(self, of: Route) -> Iterator[Identity]:
        return iter(())


class Spools:
    """Spools by route: what waits there, and what was set aside."""

    def __init__(self, waiting: dict[str, int], aside: dict[str, int]) -> None:
        self._waiting, self._aside = waiting, aside

    def waiting(self, of: str) -> Iterator[bytes]:
        return (message(number) for name, number in self._waiting.items() if name == of)

    def set_aside(self, of: str) -> Iterator[bytes]:
        return (message(number) for name, number in self._aside.items() if name == of)


def read(committed: dict[str, int], spools: Spools | None = None) -> dict[str, tuple[set[int], set[int]]]:
    passages = [Passage(origin="hub", member=each, routes=(route(each),)) for each in ("ewr", "jfk")]
    reader = SourceReader(passages, lambda end: lambda start, count: (), identify, Logs(committed), spools)
    reader.read_waiting(0)
    reader.read_set_aside()
    return {member: (each.waiting, each.dead_lettered) for (_, member), each in reader.found.items()}


def test_of_a_log_that_several_routes_read_each_has_what_its_own_group_has_not_committed() -> None:
    assert read({"isthmus.t.ewr": 5, "isthmus.t.jfk": 3}) == {"ewr": (set(), set()), "jfk": ({3, 4}, set())}
    assert read({"isthmus.t.ewr": 3, "isthmus.t.jfk": 5}) == {"ewr": ({3, 4}, set()), "jfk": (set(), set())}


def test_what_is_in_the_spools_of_one_route_waits_for_no_other() -> None:
    spools = Spools({"t.hub.jfk": 1}, {"t.hub.jfk": 2})
    found = read({"isthmus.t.ewr": 5, "isthmus.t.jfk": 5}, spools)
    assert found == {"ewr": (set(), set()), "jfk": ({1}, {2})}


def test_of_a_mailbox_what_is_before_and_beside_it_is_found() -> None:
    """A mailbox that is full takes nothing: what it refuses is a dead letter of the subscription that forwards to it."""
    feed, mailbox = "flights/Subscriptions/isthmus.t.jfk", "isthmus.t.jfk"
    numbers = {feed: 1, mailbox: 2, f"{feed}/$DeadLetterQueue": 3, f"{feed}/$Transfer/$DeadLetterQueue": 4}

    def open_peek(end: Endpoint) -> Peek:
        if end.entity not in numbers:
            raise EntityNotFoundError(end.entity)
        return lambda start, count: [message(numbers[end.entity])] if start <= numbers[end.entity] else []

    reads = Route(
        name="t.ewr.jfk",
        task="t",
        pattern="all-active",
        source=Endpoint("ewr", mailbox),
        targets=(Endpoint("jfk", "flights"),),
        options=RouteOptions(feed=feed),
    )
    reader = SourceReader([Passage(origin="ewr", member="jfk", routes=(reads,))], open_peek, identify)
    reader.read_waiting(0)
    reader.read_set_aside()
    found = reader.found["ewr", "jfk"]
    assert (found.waiting, found.dead_lettered) == ({1, 2}, {3, 4})


def test_what_a_queue_could_not_forward_is_reported_once() -> None:
    """The topic between it and the routes was full, and its messages are divided among two targets."""

    def open_peek(end: Endpoint) -> Peek:
        if "$Transfer" in end.entity or (end.entity != "orders/$DeadLetterQueue" and "$" in end.entity):
            raise EntityNotFoundError(end.entity)
        return lambda start, count: [message(7)] if start <= 7 and "$" in end.entity else []

    queue = Endpoint("ewr", "orders")
    passages = [
        Passage(
            origin="ewr",
            member=target,
            routes=(
                Route(
                    name=f"t.ewr.{target}",
                    task="t",
                    pattern="split",
                    source=Endpoint("ewr", f"isthmus.t/Subscriptions/isthmus.t.{target}"),
                    targets=(Endpoint(target, "orders"),),
                ),
            ),
            is_witnessed=False,
            is_filtered=True,
            forwards=queue,
        )
        for target in ("jfk", "lga")
    ]
    reader = SourceReader(passages, open_peek, identify)
    reader.read_waiting(0)
    reader.read_set_aside()
    assert {member: each.dead_lettered for (_, member), each in reader.found.items()} == {"jfk": {7}, "lga": set()}
