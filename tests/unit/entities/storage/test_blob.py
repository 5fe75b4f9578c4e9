"""Large messages in the entities: records that refer to bodies, and bodies without a reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.entities import (
    Engine,
    FragmentStores,
    Large,
    Limits,
    QueueDescription,
    RuleDescription,
    SqlAction,
    TopicDescription,
    TrueFilter,
)
from isthmus.entities.storage.key import REFERENCE
from isthmus.errors import QuotaExceededError, StoreError
from isthmus.store import BlobFolder, MemoryJournal
from isthmus.testing.clock import ManualClock

BODY_BYTES = 2 << 20


class Served:
    """An engine whose bodies are in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = BlobFolder(folder)
        self.journal = MemoryJournal()
        self.clock = ManualClock()
        self.restart()

    def restart(self) -> None:
        self.engine = Engine(self.journal, self.clock, blob_files=self.folder)

    def commit(self) -> None:
        while True:
            commit = self.engine.begin_commit()
            if commit is None:
                return
            self.journal.sync()
            self.engine.end_commit(commit)

    def tick(self) -> None:
        self.clock.advance(500)
        self.engine.tick()
        self.commit()

    def upload(self, **parts: Any) -> Large:
        number = self.engine.blobs.reserve()
        writer = self.folder.create(number)
        writer.write([b"body"])
        writer.sync()
        writer.close()
        message = section.encode_message(b"", **parts)
        front = message[: section.locate(message).body[0]]
        return Large(front, self.engine.blobs.whole(number, BODY_BYTES))

    def send(self, path: str, **parts: Any) -> None:
        self.engine.sender(path).accept([self.upload(**parts)])
        self.commit()

    def receive(self, path: str, **kind: Any) -> Any:
        acquired = self.engine.receiver(path).acquire(1, **kind)
        self.commit()
        return acquired

    @property
    def bodies(self) -> int:
        return len(self.folder.numbers())


@pytest.fixture
def served(tmp_path: Path) -> Served:
    made = Served(tmp_path / "large")
    made.engine.create_queue("orders", QueueDescription(max_delivery_count=2, max_message_size_in_kilobytes=102_400))
    made.engine.create_topic("news")
    made.commit()
    return made


def read(payload: Large) -> tuple[dict[str, Any], dict[Any, Any]]:
    found = section.locate(payload.front)
    return (
        section.decode_properties(payload.front, found.properties),
        section.decode_map(payload.front, found.application_properties),
    )


def test_a_large_message_is_delivered_with_its_body_and_removed_when_completed(served: Served) -> None:
    served.send("orders", properties={"message_id": "m"}, application_properties={"a": 1})
    acquired = served.receive("orders")
    (payload,) = acquired.payloads
    assert read(payload) == ({"message_id": "m"}, {"a": 1})
    assert payload.blob.size_bytes == BODY_BYTES
    served.engine.receiver("orders").complete(acquired.tags)
    served.commit()
    served.tick()
    assert served.bodies == 1, "I2: whoever sends it still holds it"
    del acquired, payload
    assert served.bodies == 0


def test_i2_a_body_outlives_a_kill_with_its_message_and_goes_without_it(served: Served) -> None:
    served.send("orders")
    served.engine.sender("orders").accept([served.upload()])  # staged, and never durable
    served.engine.begin_commit()
    served.journal.crash()
    served.restart()
    assert served.bodies == 1
    acquired = served.receive("orders")
    assert acquired.payloads[0].blob.size_bytes == BODY_BYTES
    assert served.receive("orders") is None


def test_i2_an_end_that_the_store_shows_after_a_failure_removes_nothing_before_it_is_durable(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the store continues with what was written, and a power cut may take that away."""
    served.send("orders")
    acquired = served.engine.receiver("orders").acquire(1)
    assert acquired is not None
    served.engine.receiver("orders").complete(acquired.tags)
    del acquired
    served.clock.advance(500)
    served.engine.tick()
    commit = served.engine.begin_commit()
    assert commit is not None
    monkeypatch.setattr(served.journal, "reopen", lambda: None)
    served.engine.fail_commit(commit, StoreError("no space left on device"))
    served.journal.crash()
    served.restart()
    assert served.bodies == 1
    assert served.receive("orders") is not None


def test_i2_a_completion_that_is_not_durable_removes_nothing(served: Served) -> None:
    served.send("orders")
    acquired = served.engine.receiver("orders").acquire(1)
    assert acquired is not None
    served.engine.receiver("orders").complete(acquired.tags)
    del acquired
    served.clock.advance(500)
    served.engine.tick()
    served.engine.begin_commit()
    assert served.bodies == 1
    served.journal.crash()
    served.restart()
    assert served.receive("orders") is not None


@pytest.mark.parametrize("ending", ["kill", "failed sync"])
def test_i2_who_sent_it_releases_it_before_the_completion_is_durable(served: Served, ending: str) -> None:
    served.send("orders")
    acquired = served.receive("orders")
    served.engine.receiver("orders").complete(acquired.tags)
    served.clock.advance(500)
    served.engine.tick()  # the end of the reference is staged with the completion
    commit = served.engine.begin_commit()
    del acquired
    assert served.bodies == 1
    if ending == "kill":
        served.journal.crash()
        served.restart()
    else:
        served.engine.fail_commit(commit, StoreError("full"))
    assert served.bodies == 1
    acquired = served.receive("orders")
    assert isinstance(acquired.payloads[0], Large)
    served.engine.receiver("orders").complete(acquired.tags)
    served.commit()
    del acquired
    served.tick()
    assert served.bodies == 0


def test_a_failed_commit_gives_up_the_body(served: Served) -> None:
    served.engine.sender("orders").accept([served.upload()])
    served.journal.fail_writes = OSError("no space left on device")
    with pytest.raises(StoreError):
        served.engine.begin_commit()
    served.journal.fail_writes = None
    served.engine.probe()
    served.commit()  # what the store shows since is durable then
    assert served.bodies == 0
    assert served.engine.runtime("orders").size_bytes == 0


def test_a_failure_whose_references_cannot_be_read_at_first_gives_up_the_body(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which no reference names when they can be."""
    scan, refused = served.journal.scan, []

    def refuses(first: bytes, end: bytes, **more: Any) -> Any:
        if first == bytes([REFERENCE]) and not refused:
            refused.append(first)
            raise StoreError("a block cannot be read")
        return scan(first, end, **more)

    served.engine.sender("orders").accept([served.upload()])
    commit = served.engine.begin_commit()
    assert commit is not None
    served.journal.crash()
    monkeypatch.setattr(served.journal, "scan", refuses)
    with pytest.raises(StoreError, match="a block cannot be read"):
        served.engine.fail_commit(commit, StoreError("no space"))
    served.engine.probe()
    served.commit()
    assert served.bodies == 0


def test_a_clock_that_is_set_back_keeps_no_body_of_a_removed_message(served: Served) -> None:
    served.send("orders")
    served.tick()
    acquired = served.receive("orders")
    served.engine.receiver("orders").complete(acquired.tags)
    served.commit()
    del acquired
    served.clock.set_wall(served.clock.wall_ms() - 86_400_000)
    for _ in range(2):
        served.tick()
    assert served.bodies == 0


@pytest.mark.parametrize("how", ["abandon", "dead_letter", "defer", "expire", "delete", "forward", "purge"])
def test_i3_every_end_of_a_message(served: Served, how: str) -> None:
    engine = served.engine
    queue = engine.receiver("orders")
    header = section.Header(ttl_ms=60_000) if how == "expire" else None
    served.send("orders", header=header, application_properties={"a": 1})
    last = "orders"
    if how in ("abandon", "dead_letter"):
        for _ in range(2 if how == "abandon" else 1):
            tags = served.receive("orders").tags
            if how == "abandon":
                queue.abandon(tags, {"b": 2})
            else:
                queue.dead_letter(tags, "because", "it is large")
            served.commit()
        last = "orders/$DeadLetterQueue"
    elif how == "defer":
        acquired = served.receive("orders")
        queue.defer(acquired.tags)
        served.commit()
        served.tick()
        assert served.bodies == 1
        deferred = queue.receive_deferred(acquired.sequences, lock=False)
        assert isinstance(deferred.payloads[0], Large)
        last = ""
    elif how == "expire":
        served.clock.advance(61_000)
        last = ""
    elif how == "delete":
        engine.delete_queue("orders")
        last = ""
    elif how == "purge":
        assert queue.delete_batch(10) == 1
        last = ""
    elif how == "forward":
        engine.create_queue("target", QueueDescription(max_message_size_in_kilobytes=102_400))
        engine.update_queue("orders", QueueDescription(max_message_size_in_kilobytes=102_400, forward_to="target"))
        last = "target"
    served.commit()
    for _ in range(3):
        served.tick()
    if last:
        assert served.bodies == 1
        acquired = served.receive(last, lock=False)
        assert read(acquired.payloads[0])[1]["a"] == 1
        del acquired
        served.tick()
    deferred = acquired = None
    served.tick()
    assert served.bodies == 0
    served.restart()
    assert not served.engine.blobs.is_used


def test_copies_of_a_topic_share_a_body_and_actions_change_what_is_theirs(served: Served) -> None:
    for name in ("a", "b"):
        served.engine.create_subscription("news", name)
    served.engine.delete_rule("news", "b", "$Default")
    rule = RuleDescription(name="r", filter=TrueFilter(), action=SqlAction("SET x = 5; SET sys.Label = 'l'"))
    served.engine.create_rule("news", "b", rule)
    served.engine.update_topic("news", _with_size(served.engine.get_topic("news")))
    served.send("news", application_properties={"a": 1})
    assert (served.bodies, served.engine.blobs.disk_bytes) == (1, BODY_BYTES)
    assert served.engine.runtime("news").size_bytes > 2 * BODY_BYTES
    for name, expected in (("a", {"a": 1}), ("b", {"a": 1, "RuleName": "r", "x": 5})):
        served.tick()
        assert served.bodies == 1
        acquired = served.receive(f"news/Subscriptions/{name}", lock=False)
        assert read(acquired.payloads[0])[1] == expected
        del acquired
    served.tick()
    assert (served.bodies, served.engine.blobs.disk_bytes) == (0, 0)


def _with_size(description: Any) -> Any:
    description.max_message_size_in_kilobytes = 102_400
    return description


def test_scheduled_ones_keep_their_body_until_they_are_due_and_after(served: Served) -> None:
    due_ms = served.clock.wall_ms() + 60_000
    from isthmus.amqp.types import Timestamp

    served.send("orders", annotations={"x-opt-scheduled-enqueue-time": Timestamp(due_ms)})
    served.tick()
    assert (served.receive("orders"), served.bodies) == (None, 1)
    served.clock.advance(60_000)
    for _ in range(3):
        served.tick()
    acquired = served.receive("orders")
    assert (acquired.payloads[0].blob.size_bytes, served.bodies) == (BODY_BYTES, 1)


def test_bodies_count_to_the_quota_and_dead_ones_make_room(served: Served) -> None:
    """Quota I1."""
    served.engine.update_queue(
        "orders", QueueDescription(max_size_in_megabytes=3, max_message_size_in_kilobytes=102_400)
    )
    served.send("orders")
    assert served.engine.runtime("orders").size_bytes >= BODY_BYTES
    with pytest.raises(QuotaExceededError):
        served.send("orders")
    acquired = served.receive("orders")
    served.engine.receiver("orders").complete(acquired.tags)
    served.commit()
    served.send("orders")
    assert BODY_BYTES <= served.engine.runtime("orders").size_bytes < 2 * BODY_BYTES


def test_many_references_are_looked_at_in_slices(served: Served) -> None:
    """Messages that stay before those that go must not hide them."""
    for _ in range(100):
        served.send("orders")
    queue = served.engine.receiver("orders")
    tags = [tag for _ in range(100) for tag in served.receive("orders").tags]
    queue.complete(tags[70:])
    served.commit()
    for _ in range(5):
        served.tick()
    assert served.bodies == 70
    queue.complete(tags[:70])
    served.commit()
    for _ in range(5):
        served.tick()
    assert served.bodies == 0


def test_a_transaction_that_is_rolled_back_gives_up_the_body(served: Served) -> None:
    transaction = served.engine.transaction()
    transaction.send(served.engine.sender("orders"), [served.upload()])
    assert served.bodies == 1
    transaction.rollback()
    assert served.bodies == 0
    transaction = served.engine.transaction()
    transaction.send(served.engine.sender("orders"), [served.upload()])
    transaction.commit()
    served.commit()
    served.tick()
    assert (served.bodies, len(served.receive("orders").payloads)) == (1, 1)


@pytest.mark.parametrize("waiting", [False, True])
def test_a_body_that_cannot_be_read_delays_no_other_message_in_transit_to_another_store(
    tmp_path: Path, waiting: bool
) -> None:
    served = Served(tmp_path / "large")
    fragments: dict[int, MemoryJournal] = {}
    stores = FragmentStores(lambda index: fragments.setdefault(index, MemoryJournal()), served.clock, Limits(), bytes)
    engine = served.engine = Engine(served.journal, served.clock, blob_files=served.folder, stores=stores)

    def commit() -> None:
        for _ in range(5):
            Served.commit(served)
            for store in stores:
                made = store.engine.begin_commit()
                store.journal.sync()
                if made is not None:
                    store.engine.end_commit(made)

    sizes = {"max_message_size_in_kilobytes": 102_400}
    engine.create_queue("to", QueueDescription(enable_partitioning=True, **sizes))
    forwards = QueueDescription(forward_to="to", requires_duplicate_detection=True, **sizes)
    engine.create_queue("q", replace(forwards, forward_to=None) if waiting else forwards)
    commit()
    uploads = [served.upload(properties={"message_id": name}) for name in ("whole", "broken", "behind")]
    for each in (uploads[0], uploads[2]):
        (tmp_path / "large" / f"{each.blob.number:016x}.body").write_bytes(bytes(BODY_BYTES))
    served.folder.remove(uploads[1].blob.number)
    for each in uploads:
        engine.sender("q").accept([each])
    commit()
    if waiting:
        engine.update_queue("q", forwards)
    commit()
    dead = engine.receiver("q/$deadletterqueue").acquire(9)
    assert [read(one)[0]["message_id"] for one in dead.payloads] == ["broken"]
    assert read(dead.payloads[0])[1]["DeadLetterReason"] == "BodyUnreadable"
    assert str(tmp_path) not in str(read(dead.payloads[0]))
    assert engine.runtime("to").active_message_count == 2
    assert engine.runtime("q").active_message_count == 0


@pytest.mark.parametrize("waiting", [False, True])
def test_a_quota_that_is_looked_at_midway_divides_no_batch(served: Served, waiting: bool) -> None:
    """Relay I1: dead bodies are looked for without writing what is staged, while messages are moved."""
    engine = served.engine
    served.send("orders")  # there are large messages
    engine.create_queue("to", QueueDescription(max_size_in_megabytes=1))
    forwards = QueueDescription(forward_to="to")
    engine.create_queue("q", replace(forwards, forward_to=None) if waiting else forwards)
    served.commit()
    messages = [section.encode_message(bytes(700 << 10), properties={"message_id": name}) for name in "ab"]
    if waiting:
        for one in messages:
            engine.sender("q").accept([one])
        served.commit()
        engine.update_queue("q", forwards)  # moves what waits: one is taken, the other is not
    else:
        engine.sender("q").accept(messages)
    served.journal.crash(keep=1_000)  # a kill: what was written stays
    served.restart()
    counts = [served.engine.runtime(path).message_count for path in ("q", "to")]
    assert counts == ([2, 0] if waiting else [0, 0])


def test_what_is_dead_is_ended_once_though_it_is_looked_for_again_midway(served: Served) -> None:
    """I2. Copies share a body: a reference that was ended twice would take the other one's body."""
    served.engine.update_topic("news", TopicDescription(max_message_size_in_kilobytes=102_400))
    for name in ("a", "b"):
        served.engine.create_subscription("news", name)
    served.engine.create_queue("to", QueueDescription(max_size_in_megabytes=1))
    served.engine.create_queue("q", QueueDescription(forward_to="to"))
    served.commit()
    served.send("news")
    served.send("news")
    acquired = served.receive("news/subscriptions/a")
    served.engine.receiver("news/subscriptions/a").complete(acquired.tags)
    served.commit()
    del acquired
    messages = [section.encode_message(bytes(700 << 10), properties={"message_id": name}) for name in "abcd"]
    served.engine.sender("q").accept(messages)  # three of them are refused, one by one
    served.commit()
    for _ in range(3):
        served.tick()
    assert served.bodies == 2
