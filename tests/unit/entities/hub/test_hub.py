"""Event hubs as entities: placement, settings, limits, restarts, retention by size."""

from __future__ import annotations

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Symbol
from isthmus.entities import Engine, EntityStatus, InvalidMessageError, Limits
from isthmus.entities.hub import Cursor, EventHubDescription, Selector, parse_selector
from isthmus.entities.hub.key import STATE, state_key
from isthmus.entities.hub.placement import place
from isthmus.entities.hub.selector import Position
from isthmus.errors import (
    ArgumentOutOfRangeError,
    EntityDisabledError,
    EntityExistsError,
    EntityNotFoundError,
    InvalidArgumentError,
    MessageTooLargeError,
    QuotaExceededError,
    StoreError,
)
from isthmus.store import MemoryJournal, RocksJournal
from isthmus.testing.clock import ManualClock


class Space:
    def __init__(self, journal=None, **limits):
        self.journal = journal or MemoryJournal()
        self.clock = ManualClock()
        self.limits = Limits(**limits)
        self.start()

    def start(self):
        self.engine = Engine(self.journal, self.clock, limits=self.limits)
        self.hubs = self.engine.hubs

    def commit(self):
        commit = self.engine.begin_commit()
        self.journal.sync()
        if commit is not None:
            self.engine.end_commit(commit)

    def hub(self, name="hub", **settings):
        self.hubs.create(name, EventHubDescription(**settings))
        self.commit()
        return self.hubs.find(name)


def event(body=b"e", key=None, **parts):
    annotations = {"x-opt-partition-key": key} if key is not None else None
    return section.encode_message(body, annotations=annotations, **parts)


def envelope(*events, key=None):
    annotations = section.encode_map_section(section.MESSAGE_ANNOTATIONS, {"x-opt-partition-key": key}) if key else b""
    return annotations + b"".join(b"\0Su\xb0" + len(each).to_bytes(4, "big") + each for each in events)


def read(partition, start=0):
    cursor = Cursor(partition, start)
    found = []
    while events := cursor.take(100, 1 << 20):
        found += events
    return found


def bodies(partition):
    return [each[slice(*section.locate(each).body)][5:] for each in read(partition)]


def test_an_event_comes_as_it_was_sent_but_for_three_annotations():
    space = Space()
    hub = space.hub()
    annotations = {"x-opt-partition-key": "k", "x-mine": 5, "x-opt-offset": "99", "x-opt-sequence-number": 99}
    sent = section.encode_message(
        b"body", header=section.Header(durable=True), annotations=annotations, properties={"message_id": "m"},
        application_properties={"flag": True, "n": 1},
    ) + section.encode_map_section(section.FOOTER, {"f": 1})  # fmt: skip
    hub.accept([sent])
    space.commit()
    partition = hub.partitions[place("k", 4)]
    [got] = read(partition)
    was, now = section.locate(sent), section.locate(got)
    assert got[now.properties[0] :] == sent[was.properties[0] :]
    assert got[slice(*now.header)] == sent[slice(*was.header)]
    marks = section.decode_map(got, now.message_annotations)
    assert marks == {
        "x-opt-sequence-number": 0,
        "x-opt-offset": "0",
        "x-opt-enqueued-time": space.clock.wall_ms(),
        "x-opt-partition-key": "k",
        "x-mine": 5,
    }


def test_offsets_are_positions_in_bytes():
    space = Space()
    hub = space.hub(partition_count=1)
    hub.accept([event(b"x" * size) for size in (1, 500, 70_000)])
    space.commit()
    hub.accept([event(b"y" * 300_000), event()])
    space.commit()
    got = read(hub.partitions[0])
    offsets = [int(section.decode_map(each, section.locate(each).message_annotations)["x-opt-offset"]) for each in got]
    assert offsets == [sum(map(len, got[:at])) for at in range(5)]
    assert hub.partitions[0].committed.size_bytes == sum(map(len, got))


def test_sections_out_of_order_are_put_in_order_and_rubbish_is_refused():
    space = Space()
    hub = space.hub(partition_count=1)

    properties = section.encode_message(b"b", properties={"message_id": "m"})
    at = section.locate(properties).body[0]
    late = properties[:at] + section.encode_map_section(section.MESSAGE_ANNOTATIONS, {"x-a": 1}) + properties[at:]
    hub.accept([late])
    space.commit()
    [got] = read(hub.partitions[0])
    found = section.locate(got)
    assert section.decode_map(got, found.message_annotations)["x-a"] == 1
    assert got[found.properties[0] :] == properties
    for rubbish in (b"", b"\0Sp", b"no message", b"\0Sr\xc1\x03\x02\x40\x40" + event()):
        with pytest.raises(InvalidArgumentError):
            hub.accept([rubbish])
    assert not space.engine.has_staged


def test_keys_stay_with_their_partition_and_batches_stay_together():
    space = Space()
    hub = space.hub()
    for number in range(40):
        hub.accept([event(b"%02d" % number, key=f"k{number % 7}")])
        batch = [event(b"b%02d" % number), event(b"c%02d" % number)]
        hub.accept_batch(envelope(*batch, key=f"k{number % 7}"), batch)
    space.commit()
    for index, partition in enumerate(hub.partitions):
        found = bodies(partition)
        wanted = [n for n in range(40) if place(f"k{n % 7}", 4) == index]
        assert found == [b"%b%02d" % (mark, n) for n in wanted for mark in (b"", b"b", b"c")]


def test_events_without_a_key_go_round():
    space = Space()
    hub = space.hub()
    hub.accept([event(b"%d" % number) for number in range(8)])
    for number in range(4):
        batch = [event(b"b%d" % number)] * 3
        hub.accept_batch(envelope(*batch), batch)
    space.commit()
    assert [partition.committed.next for partition in hub.partitions] == [5, 5, 5, 5]


def test_a_partition_by_id():
    space = Space()
    hub = space.hub()
    hub.accept([event(b"a", key="k1")], hub.partition("2"))
    space.commit()
    assert bodies(hub.partitions[2]) == [b"a"]
    for wrong in ("4", "-1", "x", "", "1.0", "٢"):
        with pytest.raises(ArgumentOutOfRangeError):
            hub.partition(wrong)


@pytest.mark.parametrize(
    ("key", "wanted"), [("", 0), ("a", None), ("device-17", None), ("k" * 12, None), ("k" * 13, None), ("é", None)]
)
def test_place_is_stable_and_in_range(key, wanted):
    for count in (1, 2, 4, 32):
        index = place(key, count)
        assert 0 <= index < count
        assert index == place(key, count)
    if wanted is not None:
        assert place(key, 32) == wanted


def test_the_hash_takes_a_key_of_any_length_in_one_pass():
    assert place("k" * 100_000, 1000) == 970


def test_place_spreads():
    counts = [0] * 8
    for number in range(8000):
        counts[place(f"key-{number}", 8)] += 1
    assert min(counts) > 800


def test_refusals_stage_nothing():
    space = Space(max_message_size_bytes=10_000)
    hub = space.hub(max_message_size_in_kilobytes=2)
    with pytest.raises(MessageTooLargeError):
        hub.accept([event(), event(b"x" * 3000)])
    batch = [event(b"x" * 900)] * 3
    with pytest.raises(MessageTooLargeError):
        hub.accept_batch(envelope(*batch), batch)
    space.hubs.update("hub", EventHubDescription(status=EntityStatus.SEND_DISABLED))
    space.commit()
    with pytest.raises(EntityDisabledError):
        hub.accept([event()])
    hub.check_receivable()
    space.hubs.update("hub", EventHubDescription(status=EntityStatus.RECEIVE_DISABLED))
    with pytest.raises(EntityDisabledError):
        hub.check_receivable()
    space.commit()
    assert not space.engine.has_staged


def test_names_are_shared_with_queues_and_topics():
    space = Space()
    space.engine.create_queue("q")
    space.engine.create_topic("t")
    space.hub("Hub")
    for name in ("Q", "t", "hub"):
        with pytest.raises(EntityExistsError):
            space.hubs.create(name)
    with pytest.raises(EntityExistsError):
        space.engine.create_queue("HUB")
    for name in ("", "a/b", "-a", "a" * 261):
        with pytest.raises(InvalidArgumentError):
            space.hubs.create(name)


def test_settings_out_of_range_are_refused():
    space = Space()
    for wrong in (
        {"partition_count": 0},
        {"partition_count": 101},
        {"message_retention_ms": 0},
        {"message_retention_ms": 91 * 86_400_000},
        {"partition_retention_in_megabytes": 0},
        {"consumer_groups": ["a", "A"]},
        {"consumer_groups": ["a/b"]},
        {"max_message_size_in_kilobytes": 0},
    ):
        with pytest.raises(InvalidArgumentError):
            space.hubs.create("hub", EventHubDescription(**wrong))
    with pytest.raises(QuotaExceededError):
        space.hubs.create("hub", EventHubDescription(consumer_groups=[f"g{n}" for n in range(100)]))
    assert not space.hubs.names()


def test_consumer_groups_without_case():
    hub = Space().hub(consumer_groups=["Audit", "$default"])
    assert hub.group("audit") == "Audit"
    assert hub.group("$default") == "$Default"
    with pytest.raises(EntityNotFoundError):
        hub.group("other")


def test_partitions_can_be_added_and_never_taken_away():
    space = Space()
    hub = space.hub(partition_count=2)
    hub.accept([event(b"a")], hub.partition("1"))
    space.commit()
    space.hubs.update("hub", EventHubDescription(partition_count=3))
    space.commit()
    assert len(hub.partitions) == 3
    assert bodies(hub.partitions[1]) == [b"a"]
    with pytest.raises(InvalidArgumentError):
        space.hubs.update("hub", EventHubDescription(partition_count=2))
    space.start()
    assert len(space.hubs.find("HUB").partitions) == 3
    assert bodies(space.hubs.find("hub").partitions[1]) == [b"a"]


def test_a_hub_made_again_begins_empty():
    space = Space()
    old = space.hub()
    old.accept([event()] * 8)
    space.commit()
    space.hubs.delete("hub")
    space.commit()
    assert old.is_deleted
    assert all(partition.is_deleted and partition.blocks(0) == [] for partition in old.partitions)
    with pytest.raises(EntityNotFoundError):
        old.accept([event()])
    new = space.hub()
    assert {p.number for p in new.partitions}.isdisjoint(p.number for p in old.partitions)
    assert [p.committed.next for p in new.partitions] == [0] * 4
    assert space.hubs.due_ms is not None


@pytest.mark.parametrize("store", ["memory", "rocks"])
def test_everything_is_there_after_a_restart(store, tmp_path):
    space = Space(MemoryJournal() if store == "memory" else RocksJournal(tmp_path / "store"))
    rights = EventHubDescription(partition_count=3, consumer_groups=["g"], user_metadata="m", message_retention_ms=5000)
    space.hubs.create("Hub", rights)
    hub = space.hubs.find("hub")
    for number in range(30):
        hub.accept([event(b"%d" % number, key=f"{number}")])
        space.commit()
    before = [read(partition) for partition in hub.partitions]
    space.engine.close()
    if store == "rocks":
        space.journal.close()
        space.journal = RocksJournal(tmp_path / "store")
    space.start()
    assert space.hubs.names() == ["Hub"]
    assert space.hubs.get("hub") == rights
    assert [read(partition) for partition in space.hubs.find("hub").partitions] == before
    space.engine.close()
    space.journal.close()


def test_a_failed_commit_leaves_nothing_and_keeps_the_objects():
    space = Space()
    hub = space.hub(partition_count=1)
    hub.accept([event(b"a")])
    space.commit()
    outcomes = []
    hub.accept([event(b"lost")], None, lambda: outcomes.append("durable"), outcomes.append)
    space.hubs.create("other")
    space.journal.fail_writes = OSError("full")
    with pytest.raises(StoreError):
        space.engine.begin_commit()
    space.journal.fail_writes = None
    assert [type(outcome) for outcome in outcomes] == [StoreError]
    assert space.hubs.names() == ["hub"]
    assert space.hubs.find("hub") is hub
    hub.accept([event(b"b")])
    space.commit()
    assert bodies(hub.partitions[0]) == [b"a", b"b"]


@pytest.mark.parametrize("is_new", [False, True])
def test_a_change_that_is_refused_for_a_read_has_changed_nothing(monkeypatch, is_new):
    """A new partition looks for what the store has of it."""
    space = Space()
    before = None if is_new else space.hub(partition_count=2).description
    get = space.journal.get

    def refuses(key):
        if key[0] == STATE:
            raise StoreError("a block cannot be read")
        return get(key)

    change = space.hubs.create if is_new else space.hubs.update
    wanted = EventHubDescription(partition_count=3, message_retention_ms=7_200_000)
    with monkeypatch.context() as patched:
        patched.setattr(space.journal, "get", refuses)
        with pytest.raises(StoreError):
            change("hub", wanted)
    space.engine.tick()  # the store can be read again
    space.clock.advance(20_000)
    space.engine.tick()
    assert space.hubs.names() == ([] if is_new else ["hub"])
    assert space.hubs.get("hub") == before
    space.commit()
    change("hub", wanted)
    space.commit()
    assert space.hubs.get("hub") == wanted
    assert len(space.hubs.find("hub").partitions) == 3


def test_nothing_is_read_before_it_is_durable():
    space = Space()
    hub = space.hub(partition_count=1)
    calls = []
    hub.partitions[0].add_listener(lambda: calls.append(hub.partitions[0].committed.next))
    hub.accept([event(b"a")])
    commit = space.engine.begin_commit()
    assert bodies(hub.partitions[0]) == []
    assert calls == []
    space.journal.sync()
    space.engine.end_commit(commit)
    assert calls == [1]
    assert bodies(hub.partitions[0]) == [b"a"]


def test_retention_by_size_keeps_the_newest():
    space = Space()
    hub = space.hub(partition_count=1, partition_retention_in_megabytes=1)
    partition = hub.partitions[0]
    for number in range(40):
        hub.accept([event(b"%02d" % number + b"x" * 100_000)])
        space.commit()
        space.clock.advance(1000)
        space.engine.tick()
        space.commit()
        assert partition.committed.size_bytes <= (1 << 20) + (1 << 16) + 101_000
    assert partition.committed.size_bytes > 900_000
    assert bodies(partition)[-1].startswith(b"39") or partition.committed.next == 40
    assert len(read(partition)) == partition.committed.next - partition.committed.begin


def test_retention_of_everything_keeps_the_numbers():
    space = Space()
    hub = space.hub(partition_count=1, message_retention_ms=1000)
    hub.accept([event()] * 5)
    space.commit()
    offset = hub.partitions[0].committed.end_offset
    space.clock.advance(10_000)
    space.engine.tick()
    space.commit()
    state = hub.partitions[0].committed
    assert state.is_empty
    assert state.size_bytes == 0
    assert (state.begin, state.next, state.end_offset) == (5, 5, offset)
    space.start()
    assert space.hubs.find("hub").partitions[0].committed == state
    space.hubs.find("hub").accept([event(b"new")])
    space.commit()
    [got] = read(space.hubs.find("hub").partitions[0])
    marks = section.decode_map(got, section.locate(got).message_annotations)
    assert (marks["x-opt-sequence-number"], marks["x-opt-offset"]) == (5, str(offset))


HOUR_MS = 3_600_000


def stamps(partition):
    found = [section.decode_map(each, section.locate(each).message_annotations) for each in read(partition)]
    return [each["x-opt-enqueued-time"] for each in found]


@pytest.mark.parametrize("restarts", [False, True])
def test_retention_continues_after_the_clock_was_an_hour_ahead_i5(restarts):
    space = Space()
    true_ms = space.clock.wall_ms()
    hub = space.hub(partition_count=1, message_retention_ms=600_000)
    space.clock.set_wall(true_ms + HOUR_MS)
    for number in range(5):
        hub.accept([event(b"ahead%d" % number)])
        space.commit()
    space.engine.tick()
    space.clock.set_wall(true_ms)
    if restarts:
        space.start()
    partition = space.hubs.find("hub").partitions[0]
    for minute in range(1, 31):
        space.clock.advance(60_000)
        space.hubs.find("hub").accept([event(b"m%d" % minute)])
        space.commit()
        space.engine.tick()
        space.commit()
        remaining = bodies(partition)
        seen = stamps(partition)
        assert seen == sorted(seen)
        # Nothing is removed before its time, and nothing stays long after it.
        assert remaining[-min(minute, 10) :] == [b"m%d" % each for each in range(max(1, minute - 9), minute + 1)]
        assert len(remaining) <= 5 + min(minute, 14)
        if minute > 12:
            assert not [each for each in remaining if each.startswith(b"ahead")]
    for _ in range(60):
        space.clock.advance(60_000)
        space.engine.tick()
        space.commit()
    assert bodies(partition) == []


def test_a_clock_that_is_behind_for_a_while_removes_nothing_early_i5():
    space = Space()
    true_ms = space.clock.wall_ms()
    hub = space.hub(partition_count=1, message_retention_ms=600_000)
    hub.accept([event(b"a")])
    space.commit()
    space.clock.set_wall(true_ms - HOUR_MS)
    for _ in range(3):
        space.clock.advance(60_000)
        space.engine.tick()
        space.commit()
    space.clock.set_wall(true_ms + 180_000)
    for _ in range(6):
        space.clock.advance(60_000)
        space.engine.tick()
        space.commit()
        assert bodies(hub.partitions[0]) == [b"a"]
    space.clock.advance(120_000)
    space.engine.tick()
    space.commit()
    assert bodies(hub.partitions[0]) == []


def test_a_reader_in_the_midst_of_a_block_passes_over_what_retention_removed_i1():
    space = Space()
    hub = space.hub(partition_count=1, message_retention_ms=1000)
    partition = hub.partitions[0]
    hub.accept([event(b"a"), event(b"b")])
    space.commit()
    cursor = Cursor(partition, 0)
    assert len(cursor.take(1, 1)) == 1
    space.clock.advance(10_000)
    space.engine.tick()
    space.commit()
    assert cursor.take(1, 1) == []
    hub.accept([event(b"c")])
    space.commit()
    [got] = cursor.take(1, 1)
    assert got[slice(*section.locate(got).body)][5:] == b"c"


def test_a_partition_that_cannot_be_read_keeps_no_other_one_from_its_retention(monkeypatch):
    space = Space()
    hub = space.hub(partition_count=2, message_retention_ms=1000)
    for partition in hub.partitions:
        hub.accept([event()], partition)
    space.commit()
    space.clock.advance(2000)
    bad, good = hub.partitions

    def refused(sequence):
        raise StoreError("a block cannot be read")

    monkeypatch.setattr(bad, "_scan", refused)
    with pytest.raises(StoreError, match="a block"):
        space.engine.tick()
    space.commit()
    assert [each.committed.is_empty for each in (bad, good)] == [False, True]


def test_retention_is_one_range_and_leaves_no_row(tmp_path):
    space = Space(RocksJournal(tmp_path / "store"))
    hub = space.hub(partition_count=1, message_retention_ms=1000)
    changes = []
    write = space.journal.write

    def counted(batch):
        changes.append(batch.len())
        write(batch)

    for _ in range(200):
        hub.accept([event(b"x" * 100)])
        space.commit()
    space.journal.write = counted
    space.clock.advance(10_000)
    space.engine.tick()
    space.commit()
    # Two hundred rows went, by one change and the row of cursors.
    assert changes == [2]
    assert list(space.journal.scan(b"\x62", b"\x63")) == []
    space.engine.close()
    space.journal.close()


def test_selectors():
    prefix = "amqp.annotation."
    assert parse_selector(f"{prefix}x-opt-offset > '-1'") == Selector()
    assert parse_selector(f"{prefix}x-opt-offset >= '12'") == Selector(Position.OFFSET, 12, inclusive=True)
    assert parse_selector(f" {prefix}x-opt-sequence-number>'12' ") == Selector(Position.SEQUENCE, 12)
    assert parse_selector(f"{prefix}x-opt-enqueued-time > 1700") == Selector(Position.ENQUEUED_TIME, 1700)
    assert parse_selector(f'{prefix}x-opt-offset > "@latest"') == Selector(Position.LATEST)
    for wrong in (
        "", "x-opt-offset > '1'", f"{prefix}x-opt-offset < '1'", f"{prefix}x-opt-offset = '1'",
        f"{prefix}x-opt-offset > 'a'", f"{prefix}x-opt-else > '1'", f"{prefix}x-opt-offset > '1' AND 1=1",
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError):
            parse_selector(wrong)


def test_positions_behind_the_end_are_refused():
    space = Space()
    hub = space.hub(partition_count=1)
    hub.accept([event()] * 3)
    space.commit()
    partition = hub.partitions[0]
    for name in ("offset", "sequence-number"):
        with pytest.raises(InvalidArgumentError, match="is invalid"):
            partition.locate(parse_selector(f"amqp.annotation.x-opt-{name} > '5000000'"))
    assert partition.locate(parse_selector(f"amqp.annotation.x-opt-enqueued-time > '{10**15}'")) == 3


def test_keys_of_any_kind_are_keys():
    space = Space()
    hub = space.hub()
    for key in (Symbol("k"), "k", b"k"):
        hub.accept([event(key=key)])
    space.commit()
    assert hub.partitions[place("k", 4)].committed.next == 3


def test_statistics():
    space = Space()
    hub = space.hub(partition_count=2)
    hub.accept([event()] * 6)
    space.commit()
    counts = space.hubs.statistics()["hub"]
    assert counts["event_count"] == 6
    assert counts["partition_count"] == 2
    assert counts["size_bytes"] == sum(p.committed.size_bytes for p in hub.partitions)
    assert hub.partitions[0].statistics()["last_sequence_number"] == 2


@pytest.mark.parametrize("digits", [9, 10, 5000])
def test_a_partition_id_of_many_digits_is_none(digits):
    hub = Space().hub(partition_count=2)
    with pytest.raises(ArgumentOutOfRangeError):
        hub.partition("9" * digits)


@pytest.mark.parametrize("single", [True, False])
def test_a_partition_key_has_128_characters_at_most(single):
    space = Space()
    hub = space.hub()

    def send(key):
        if single:
            hub.accept([event(key=key)])
        else:
            one = envelope(event(), key=key)
            hub.accept_batch(one, [event()])

    send("k" * 128)
    with pytest.raises(InvalidMessageError):
        send("k" * 129)


def test_events_that_a_failure_left_are_read_when_they_are_durable_i2(monkeypatch):
    """On a full disk the store continues with what was written; after a power cut others get their numbers."""
    space = Space()
    hub = space.hub(partition_count=1)
    partition = hub.partitions[0]
    hub.accept([event(b"durable")])
    space.commit()
    hub.accept([event(b"perhaps")])
    commit = space.engine.begin_commit()
    monkeypatch.setattr(space.journal, "reopen", lambda: None)
    space.engine.fail_commit(commit, StoreError("no space left on device"))
    assert bodies(partition) == [b"durable"]
    assert partition.locate(Selector(Position.LATEST)) == 1
    hub.accept([event(b"later")])
    space.commit()
    assert bodies(partition) == [b"durable", b"perhaps", b"later"]


def test_events_that_a_second_look_does_not_find_are_not_waited_for_i2(monkeypatch):
    """The first look at the store ended midway, and the store lost what it had shown."""
    space = Space()
    hub = space.hub(partition_count=2)
    first, second = hub.partitions
    hub.accept([event(b"durable")], first)
    space.commit()
    hub.accept([event(b"lost")], first)
    commit = space.engine.begin_commit()
    get, row = space.journal.get, state_key(second.number)

    def refuses(key):
        if key == row:
            raise StoreError("a block cannot be read")
        return get(key)

    with monkeypatch.context() as patch:
        patch.setattr(space.journal, "reopen", lambda: None)
        patch.setattr(space.journal, "get", refuses)
        with pytest.raises(StoreError):
            space.engine.fail_commit(commit, StoreError("no space left on device"))
    space.engine.probe()
    space.commit()
    assert first.committed.next == 1
    hub.accept([event(b"later")], first)
    assert first.committed.next == 1
    space.commit()
    assert bodies(first) == [b"durable", b"later"]
