"""An event hub that is created again while it is read, without a namespace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Exhausted, SourceLost, SourceOpened
from isthmus.connectors.checkpoint.checkpoint import Checkpoint, CheckpointError, GroupKey
from isthmus.connectors.checkpoint.thread import Written
from isthmus.connectors.eventhubs.option import read_source
from isthmus.connectors.eventhubs.partition import link_set, loss
from isthmus.connectors.eventhubs.partition.address import START_OFFSET
from isthmus.connectors.eventhubs.partition.hub_query import PartitionView
from isthmus.connectors.eventhubs.source import EventHubsSource
from isthmus.connectors.kafka.consumer.present import Present
from isthmus.connectors.servicebus.port.end import Step
from isthmus.entities.hub.event import EventReader as Broker
from isthmus.entities.hub.event import write_events
from isthmus.errors import ConnectionLostError


def events(first: int, stop: int) -> list[bytes]:
    plain = [section.encode_message(b"x")]
    return [write_events(Broker().read(plain), number, number * 10, 1)[0] for number in range(first, stop)]


class Link:
    """Gives what a test puts into it."""

    def __init__(self, client: Any, hub: str, group: str, partition: int, begin: Any, *_: Any) -> None:
        self.hub, self.begin, self.payloads = hub, begin, list[bytes]()
        self.attached, self.error, self.credit = True, None, 0

    @property
    def count(self) -> int:
        return len(self.payloads)

    def take(self) -> list[bytes]:
        taken, self.payloads = self.payloads, []
        return taken

    def grant(self, credit: int) -> None:
        self.credit = credit

    def close(self) -> None:
        pass


class Hub:
    """A source of a hub of one partition."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        monkeypatch.setattr(link_set, "PartitionLink", Link)
        monkeypatch.setenv("HUB", "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=v")
        self.written: list[dict[int, Checkpoint]] = []
        self.answers: list[Any] = []
        thread = SimpleNamespace(
            take=self._take,
            write=lambda _, checkpoints: self.written.append(checkpoints),
            stop=lambda: None,
            ident=None,
        )
        pool: Any = SimpleNamespace(
            remote=lambda _: None, mark=lambda _: None, unmark=lambda _: None, leave=lambda *_: None,
            threads=SimpleNamespace(mark=lambda _: None),
        )  # fmt: skip
        reported = {"connection": "env:HUB", "topic": "hub", "checkpoints": "/nowhere", **options}
        self.source = EventHubsSource(pool, 1, read_source(reported), only_present=False, thread=lambda *_: thread)  # type: ignore[arg-type,return-value]
        self.source._checkpoints.group = GroupKey("identity", "localhost", "hub", "$Default")

    def _take(self) -> list[Any]:
        taken, self.answers = self.answers, []
        return taken

    def open(
        self,
        last: int,
        begin: int = 0,
        checkpoint: int = -1,
        created_ms: int = 0,
        kept_ms: int = 0,
        kept_offset: str = "",
    ) -> list[Any]:
        """The namespace answers what there is; what is reported to the owner. `created_ms`: when the hub was made, `kept_ms`: that of the checkpoint."""
        source = self.source
        source.step = Step.ATTACHING
        source.client = SimpleNamespace(error=None)  # type: ignore[assignment]
        view = PartitionView(begin, last, str(last * 10))
        source._query = SimpleNamespace(  # type: ignore[assignment]
            advance=lambda: None, close=lambda: None, error=None, is_done=True, views={0: view}, created_ms=created_ms
        )
        kept = Checkpoint(checkpoint, str(checkpoint * 10), created_ms=kept_ms)
        kept = Checkpoint(checkpoint, kept_offset) if kept_offset else kept
        source._checkpoints.kept = {0: kept} if checkpoint >= 0 or kept_offset else {}
        reported = list(source.poll(0.0))
        source.grant(100)
        return reported

    def give(self, first: int, stop: int) -> list[int]:
        """Events arrive; the positions that the owner gets."""
        self.source._links._links[0].payloads += events(first, stop)  # type: ignore[attr-defined]
        return [at for each in self.source.poll(0.0) if isinstance(each, Arrived) for at in each.positions]

    @property
    def begins_at(self) -> int:
        return self.source._links._links[0].begin.sequence  # type: ignore[no-any-return,attr-defined]

    def lose(self) -> None:
        self.source.fail(ConnectionLostError("gone"))
        self.source.poll(0.0)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


@pytest.mark.parametrize(("offset", "is_over"), [("490", True), ("480", False)])
def test_a_checkpoint_without_sequence_number_at_the_end_leaves_nothing_to_read(
    hub: Hub, offset: str, is_over: bool
) -> None:
    """As some SDKs write it: a run for what exists never ended, because nothing arrives."""
    hub.source._reading.present = Present()
    reported = hub.open(last=49, kept_offset=offset)
    assert (Exhausted() in [*reported, *hub.source.poll(0.0)]) == is_over
    if not is_over:
        assert hub.give(49, 50) == [49]


def lost(reported: list[Any]) -> str:
    [event] = [each for each in reported if isinstance(each, SourceLost)]
    return str(event.text)


def test_a_hub_that_was_made_again_is_read_from_its_beginning_though_it_has_grown_when_it_is_opened(hub: Hub) -> None:
    """The first opening reports it, and fails."""
    hub.open(last=49)
    assert len(hub.give(0, 50)) == 50
    hub.source.settle(0, 49)
    hub.lose()
    assert "created again" in lost(hub.open(last=20))
    hub.open(last=90)
    assert hub.begins_at == -1
    assert hub.give(0, 3) == [0, 1, 2]


def test_a_hub_that_was_made_again_is_known_though_it_has_more_events_than_were_read(hub: Hub) -> None:
    """As many as were read of the one before were passed over."""
    hub.open(last=49, created_ms=1_000)
    assert len(hub.give(0, 50)) == 50
    hub.source.settle(0, 49)
    hub.lose()
    assert not [each for each in hub.open(last=60, created_ms=1_000) if isinstance(each, SourceLost)], "it is the same"
    assert hub.begins_at == 50
    hub.lose()
    assert "created again" in lost(hub.open(last=60, created_ms=2_000))
    hub.open(last=60, created_ms=2_000)
    assert hub.begins_at == -1
    assert hub.give(0, 3) == [0, 1, 2]
    hub.source.settle(0, 0)
    hub.source._checkpoints.commit(1e9)
    assert hub.written[-1] == {0: Checkpoint(0, "0", begins_again=True)}
    group = hub.source._checkpoints.group
    assert group is not None
    assert group.created_ms == 2_000, "what is written is of this one"


@pytest.mark.parametrize(("kept_ms", "begins_at"), [(1_000, -1), (2_000, 6), (0, 6)])
def test_a_hub_that_was_made_again_without_a_reader_is_known_by_its_checkpoint(
    hub: Hub, kept_ms: int, begins_at: int
) -> None:
    for _ in range(2):  # where it was, the first opening reports it
        hub.open(last=9, checkpoint=5, created_ms=2_000, kept_ms=kept_ms)
    assert hub.begins_at == begins_at
    hub.give(max(begins_at, 0), 10)
    hub.source.settle(0, 9)
    hub.lose()
    reported = hub.open(last=9, checkpoint=5, created_ms=2_000, kept_ms=kept_ms)
    assert not [each for each in reported if isinstance(each, SourceLost)], "the checkpoint was not written yet"


def test_a_hub_that_is_made_again_twice_is_reported_twice(hub: Hub) -> None:
    hub.open(last=49)
    hub.give(0, 50)
    hub.source.settle(0, 49)
    for last in (20, 5):
        hub.lose()
        assert "created again" in lost(hub.open(last=last))
        assert not [each for each in hub.open(last=last) if isinstance(each, SourceLost)]
        hub.give(0, last + 1)
        hub.source.settle(0, last)


def test_positions_of_a_hub_that_was_made_again_are_given_once_those_of_the_one_before_are_settled(hub: Hub) -> None:
    """The owner takes what comes with a position that it has for what it has."""
    hub.open(last=4)
    assert hub.give(0, 5) == [0, 1, 2, 3, 4]
    hub.lose()
    assert "created again" in lost(hub.open(last=2))
    assert "in flight" in lost(hub.open(last=2))
    hub.source.settle(0, 3)
    assert "in flight" in lost(hub.open(last=9))
    hub.source.release(4, 4)
    assert not [each for each in hub.open(last=9) if isinstance(each, SourceLost)]
    assert hub.give(0, 3) == [0, 1, 2]


def test_what_of_it_waits_to_be_set_aside_keeps_it_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, dead_letter_topic="dead")
    hub.open(last=0)
    assert hub.give(0, 1) == [0]
    hub.source.settle(0, 0, Disposition("dead-letter", "bad"))
    hub.lose()
    dead = hub.source._settlement._dead
    assert dead is not None
    monkeypatch.setattr(dead, "serve", lambda client: [])
    hub.source._is_made_again(0)
    assert "created again" in lost(hub.open(last=5))
    hub.open(last=5)
    assert hub.give(0, 1) == [0]
    assert [each.position for each in dead._waiting] == [-1]
    assert hub.source._reading.outstanding == 1


def test_a_source_is_exhausted_once_what_was_set_aside_has_its_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner closes it then: the copy of the last event would not be sent, in this run or in any other."""
    hub = Hub(monkeypatch, dead_letter_topic="aside")
    hub.source._reading.present = Present()
    stored: list[int] = []
    hub.source._settlement._dead = SimpleNamespace(  # type: ignore[assignment]
        add=lambda *_: None, serve=lambda _: [stored.pop()] if stored else [], error=None, senders=(), is_full=False
    )
    hub.open(last=1)
    hub.source._links._links[0].payloads += events(0, 2)  # type: ignore[attr-defined]
    reported = hub.source.poll(0.0)
    assert Exhausted() not in reported
    hub.source.settle(0, 0)
    hub.source.settle(1, 1, Disposition("dead-letter", "Bad", "it is"))
    assert Exhausted() not in hub.source.poll(0.0)
    stored.append(1)
    assert Exhausted() in hub.source.poll(0.0)


def test_a_run_for_what_exists_ends_though_the_hub_is_created_again_with_less(hub: Hub) -> None:
    """It waited for the ends of the former event hub."""
    hub.source._reading.present = Present()
    hub.open(last=9, created_ms=1)
    assert hub.give(0, 5) == [0, 1, 2, 3, 4]
    hub.source.settle(0, 4)
    hub.lose()
    assert "created again" in lost(hub.open(last=1, created_ms=2))
    hub.open(last=1, created_ms=2)
    hub.source._links._links[0].payloads += events(0, 2)  # type: ignore[attr-defined]
    arrived, end = hub.source.poll(0.0)
    assert isinstance(arrived, Arrived)
    assert list(arrived.positions) == [0, 1]
    assert end == Exhausted()


def test_links_lead_to_the_hub_that_the_connection_has_named(hub: Hub) -> None:
    """That of an IoT hub is known once it is connected (`isthmus.connectors.iothub.source`)."""
    hub.source.path = "told"
    hub.open(last=0)
    assert hub.source._links._links[0].hub == "told"  # type: ignore[attr-defined]
    assert hub.give(0, 1) == [0]
    hub.source.settle(0, 0, Disposition("defer"))
    assert lost(list(hub.source.poll(0.0))).startswith("event hub 'told': the event at partition 0, sequence number 0")


def test_a_gap_is_looked_at_in_the_hub_that_the_connection_has_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def query(client: Any, path: str, *_: Any) -> Any:
        looked.append(path)
        return SimpleNamespace(advance=lambda: None, close=lambda: None, error=None, is_done=False, views={})

    monkeypatch.setattr(loss, "HubQuery", query)
    hub.source.path = "told"
    hub.open(last=9)
    assert hub.give(0, 1) == [0]
    assert hub.give(5, 6) == [5]
    hub.source.poll(0.0)
    assert looked == ["told"]


# ---- `start: latest`


@pytest.fixture
def latest(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch, start="latest")


FIRST = {0: Checkpoint(9, "90")}


def test_a_source_is_open_once_the_place_where_it_begins_is_kept(latest: Hub) -> None:
    """A later reader would begin behind what comes meanwhile (`opening`, I4)."""
    assert latest.open(last=9) == []
    assert latest.written == [FIRST]
    latest.answers = [Written(latest.written[0], None)]
    assert list(latest.source.poll(0.0)) == [SourceOpened("")]


@pytest.mark.parametrize("is_stolen", [False, True])
def test_the_place_where_it_begins_stays_though_it_could_not_be_kept_at_first(latest: Hub, is_stolen: bool) -> None:
    """What came in between would be skipped, by this reader or by the next one."""
    latest.open(last=9)
    latest.answers = [Written(latest.written[0], CheckpointError("the disk is full"))]
    assert "the disk is full" in lost(latest.source.poll(0.0))  # type: ignore[arg-type]
    if is_stolen:
        latest.source._reading.forget([0])
    assert latest.open(last=19) == []
    assert latest.begins_at == 10
    assert latest.written == [FIRST, FIRST]
    latest.answers = [Written(latest.written[1], None)]
    assert list(latest.source.poll(0.0)) == [SourceOpened("")]
    latest.source.grant(100)
    assert latest.give(10, 12) == [10, 11]


def test_the_place_where_it_begins_is_kept_at_the_end_where_it_was_not_before(latest: Hub) -> None:
    latest.open(last=9)
    latest.answers = [Written(latest.written[0], CheckpointError("the disk is full"))]
    latest.source.poll(0.0)
    latest.source.close()
    assert latest.written == [FIRST, FIRST]


def _open_all(hub: Hub, lasts: list[int], checkpoints: dict[int, Checkpoint]) -> dict[int, tuple[int, str]]:
    """A hub of several partitions is opened; where each link begins."""
    source = hub.source
    source.step = Step.ATTACHING
    source.client = SimpleNamespace(error=None)  # type: ignore[assignment]
    views = {number: PartitionView(0, last, str(last * 10)) for number, last in enumerate(lasts)}
    source._query = SimpleNamespace(  # type: ignore[assignment]
        advance=lambda: None, close=lambda: None, error=None, is_done=True, views=views, created_ms=0
    )
    source._checkpoints.kept = dict(checkpoints)
    source.poll(0.0)
    return {number: tuple(link.begin) for number, link in source._links._links.items()}  # type: ignore[attr-defined]


END = {number: Checkpoint(9, "90") for number in range(4)}
BEGIN = Checkpoint(-1, START_OFFSET)


def test_a_partition_that_was_added_without_a_reader_is_read_from_its_first_event(latest: Hub) -> None:
    """What had been sent to it before the next reader came was passed over."""
    begins = _open_all(latest, [9, 9, 9, 4, 5], {0: END[0], 1: END[1], 2: END[2]})
    assert [begins[number][0] for number in range(5)] == [10, 10, 10, -1, -1]
    assert [list(each.items()) for each in latest.written] == [[(3, BEGIN), (4, BEGIN)]], "the last one last"


def test_places_where_reading_begins_are_kept_from_the_last_partition_to_the_first(latest: Hub) -> None:
    """After a kill in between, those that are missing are known not to have been added."""
    _open_all(latest, [9, 9, 9, 9], {})
    assert [list(each.items()) for each in latest.written] == [[(number, END[number]) for number in (3, 2, 1, 0)]]


def test_a_partition_before_one_with_a_place_was_not_added(latest: Hub) -> None:
    begins = _open_all(latest, [9, 9, 9, 9], {2: END[2], 3: END[3]})
    assert [begins[number][0] for number in range(4)] == [10, 10, 10, 10]
    assert latest.written == [{0: END[0], 1: END[1]}]


def test_partitions_that_are_chosen_later_begin_where_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """That they have no place does not say that they were added."""
    hub = Hub(monkeypatch, start="latest", partitions="0-1")
    assert _open_all(hub, [9, 9], {0: END[0]})[1][0] == 10


@pytest.mark.parametrize("options", [{}, {"partitions": "0"}])
def test_a_partition_that_is_added_while_it_is_read_is_read(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """What was sent to it waited for the end of the connection."""
    looks: list[SimpleNamespace] = []

    def query(*_: Any) -> SimpleNamespace:
        looks.append(
            SimpleNamespace(advance=lambda: None, close=lambda: None, error=None, is_done=True, partitions=[0, 1])
        )
        return looks[-1]

    monkeypatch.setattr("isthmus.connectors.eventhubs.partition.growth.HubQuery", query)
    hub = Hub(monkeypatch, **options)
    assert hub.open(last=9) == [SourceOpened("")]
    assert hub.source.poll(59.0) == []
    for _ in range(2):
        reported = list(hub.source.poll(60.0))
    if options:
        assert (reported, looks) == ([], []), "others were chosen"
        return
    assert "partition 1 was added" in lost(reported)
    assert not reported[0].is_fatal
    begins = _open_all(hub, [9, 3], {0: END[0]})
    assert begins[1][0] == -1
