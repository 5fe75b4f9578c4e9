"""A namespace under random operations, faults and restarts, and the account of what must be where.

What it is: a seeded run of all that entities do (sends, transactions, schedules, sessions, forwarding, topics, detection, expiry,
changes of settings) over journals that refuse writes, syncs, reads and reopening at random, are killed, and come back with
any part of what was not synced. What it is not: a model of each entity; those are in `tests/unit/entities`.

Invariants (checked whenever the namespace has nothing left to do):
    I1. A message whose acceptance was reported as durable, and whose end was not, is in its group of entities exactly once.
    I2. One whose end was reported as durable is nowhere. One with an unknown outcome is there once at most.
    I3. Whatever is there can be received: counts, looks and receivers agree.
    I4. Messages of one sender's link are in the order in which they were sent.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from isthmus.amqp import section
from isthmus.entities import (
    Acquired,
    Copy,
    Engine,
    EntityStatus,
    FragmentStores,
    Hold,
    Large,
    Limits,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    Transaction,
)
from isthmus.entities.hub import Cursor, EventHubDescription
from isthmus.errors import IsthmusError, StoreError
from isthmus.message import digest
from isthmus.message.name import DIGEST, HOP_PROPERTIES
from isthmus.store import BlobFolder, MemoryJournal, RocksJournal
from isthmus.store.recovery import lock_folder
from isthmus.testing.clock import ManualClock

__all__ = ["FaultyJournal", "FaultyRocks", "World"]

LOCK_MS = 5_000
ONWARD = {"f": "q", "g": "f", "h": "s", "x": "p"}
WINDOW_MS = 60_000
SESSIONS = ("0", "1", "2", "3")


class Faults:
    """The faults of a journal besides what a journal in memory can be set to refuse.

    Attributes:
        chance: what is random in it.
        reads_left: so many reads succeed, and `bad_reads` after them fail; None: all succeed.
        fail_reopen: whether it cannot be opened again.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.reads_left: int | None = None
        self.bad_reads = 0
        self.fail_reopen = False
        self.fail_writes: Exception | None = None
        self.fail_syncs: Exception | None = None

    def heal(self) -> None:
        """Everything works."""
        self.fail_writes = self.fail_syncs = None
        self.reads_left, self.fail_reopen = None, False

    def look(self) -> None:
        """Something is read.

        Raises:
            StoreError: it cannot be.
        """
        if self.reads_left is None:
            return
        self.reads_left -= 1
        if self.reads_left < 0:
            self.bad_reads -= 1
            if self.bad_reads <= 0:
                self.reads_left = None
            raise StoreError("a block cannot be read")

    def looking(self, pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """The pairs of a scan, as far as they can be read."""
        for pair in pairs:
            self.look()
            yield pair
        self.look()


class FaultyJournal(MemoryJournal, Faults):
    """A journal in memory whose reads fail, too, and that comes back with what was not synced, or a part of it."""

    def __init__(self, chance: random.Random) -> None:
        MemoryJournal.__init__(self)
        Faults.__init__(self, chance)

    def get(self, key: bytes) -> bytes | None:
        self.look()
        return super().get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.look()
        return super().get_many(keys)

    def scan(self, first: bytes, end: bytes, *, read_ahead: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self.looking(super().scan(first, end, read_ahead=read_ahead))

    def reopen(self) -> None:
        if self.fail_reopen:
            raise StoreError("cannot be opened")
        if self.chance.random() < 0.6:  # otherwise it continues with all that was written, as without room on the disk
            self.crash(self.chance.randrange(self.unsynced_count + 1))


class FaultyRocks(RocksJournal, Faults):
    """A store on a disk that fails likewise. A kill leaves its files as they are, all that was written among them."""

    unsynced_count = 0

    def __init__(self, chance: random.Random, folder: Path) -> None:
        Faults.__init__(self, chance)
        self._number = 0
        RocksJournal.__init__(self, folder / "0")

    def get(self, key: bytes) -> bytes | None:
        self.look()
        return super().get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.look()
        return super().get_many(keys)

    def scan(self, first: bytes, end: bytes, *, read_ahead: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self.looking(super().scan(first, end, read_ahead=read_ahead))

    def write(self, batch: Any) -> None:
        if self.fail_writes is not None:
            self._failed = str(self.fail_writes)
        super().write(batch)

    def sync(self) -> None:
        if self.fail_syncs is not None:
            self._failed = str(self.fail_syncs)
            raise StoreError(f"the store could not be synced: {self.fail_syncs}")
        super().sync()

    def reopen(self) -> None:
        if self.fail_reopen:
            raise StoreError("cannot be opened")
        super().reopen()

    def crash(self, keep: int = 0) -> None:
        """As after a kill of the process; what it had open is not closed before."""
        before, self._number = self._folder, self._number + 1
        self._folder = before.parent / str(self._number)
        shutil.copytree(before, self._folder)
        self._let_go()
        self._lock = lock_folder(self._folder)
        self._open()


# Of each entity that takes sends: the groups in which a message arrives once. A group is where it may be.
GROUPS = {
    "q": ("q", "dlq", "f", "g", "t/Subscriptions/c"),
    "d": ("d",),
    "s": ("s", "h"),
    "a": ("t/Subscriptions/a",),
    "b": ("t/Subscriptions/b",),
    "e": ("t/Subscriptions/e",),
}
PARTS = {"p": ("p", "x"), "y": ("y",), "ua": ("u/Subscriptions/a",), "ub": ("u/Subscriptions/b",)}
TARGETS: dict[str, tuple[str, ...]] = {
    "q": ("q",), "d": ("d",), "s": ("s",), "f": ("q",), "g": ("q",), "h": ("s",), "t": ("a", "b", "q", "e"),
}  # fmt: skip
PART_TARGETS: dict[str, tuple[str, ...]] = {"p": ("p",), "x": ("p",), "y": ("y",), "u": ("ua", "ub")}
SESSION_QUEUES = ("s", "y")


@dataclass
class LockedMessage:
    """A locked message."""

    queue: Any
    path: str
    name: str
    token: bytes
    sequence: int


class World:
    """One namespace and its account.

    Args:
        seed: of everything that is random.
        partitioned: whether there are entities whose fragments are in stores of their own.
        folder: of the stores; None: in memory.
    """

    def __init__(self, seed: int, *, partitioned: bool = False, folder: Path | None = None) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.folder = folder
        self.main = self._make("main")
        self.fragments: dict[int, FaultyJournal | FaultyRocks] = {}
        self.partitioned = partitioned
        self.groups = {**GROUPS, **PARTS} if partitioned else GROUPS
        self.targets = {**TARGETS, **PART_TARGETS} if partitioned else TARGETS
        self.sessions: tuple[str, ...] = SESSION_QUEUES
        self.limits = Limits(
            partitions_per_entity=3,
            partition_stores=2,
            min_duplicate_window_ms=1,
            transaction_timeout_ms=30_000,
            duplicate_key_window_ms=WINDOW_MS,
        )
        # (group, name): "perhaps", "there", "perhaps removed", "removed"
        self.state: dict[tuple[str, str], str] = {}
        self.number_of: dict[str, int] = {}
        self.sent_to: dict[str, str] = {}
        self.unordered: set[str] = set()
        self.count = 0
        self.operations: Counter[str] = Counter()
        self.locked: list[LockedMessage] = []
        self.holds: list[Hold] = []
        self.deferred: list[tuple[str, int]] = []
        self.scheduled: list[tuple[str, str, int]] = []
        self.recent: list[tuple[str, int]] = []
        # Copies of a route: what was sent, when first, and what is expected.
        self.copies: list[tuple[str, list[bytes], int, list[tuple[str, str]]]] = []
        self.copied = 0
        # Events by partition and sequence number as consumers saw them, and these consumers.
        self.events: dict[tuple[int, int], str] = {}
        self.cursors: list[Cursor] = []
        self.transactions: list[Transaction] = []
        self._is_busy = False
        self.start()
        self.create()

    # ---- the namespace

    def start(self) -> None:
        self.locked.clear()
        self.holds.clear()
        self.transactions.clear()
        self.cursors.clear()
        self.stores = (
            FragmentStores(self._open, self.clock, self.limits, self.chance.randbytes) if self.partitioned else None
        )
        self.engine = Engine(
            self.main,
            self.clock,
            limits=self.limits,
            random_bytes=self.chance.randbytes,
            stores=self.stores,
            blob_files=self.bodies,
        )
        for path in ("q", "t/Subscriptions/a"):
            with suppress(IsthmusError):
                self.engine.receiver(path).add_listener(lambda: None)

    def _make(self, name: str) -> FaultyJournal | FaultyRocks:
        return FaultyJournal(self.chance) if self.folder is None else FaultyRocks(self.chance, self.folder / name)

    def _open(self, index: int) -> FaultyJournal | FaultyRocks:
        if index not in self.fragments:
            self.fragments[index] = self._make(str(index))
        return self.fragments[index]

    @property
    def journals(self) -> list[FaultyJournal | FaultyRocks]:
        return [self.main, *self.fragments.values()]

    def describe(self, name: str, **more: Any) -> QueueDescription:
        onward = ONWARD.get(name)
        return QueueDescription(
            **{
                "lock_duration_ms": LOCK_MS,
                "max_delivery_count": 3,
                "dead_lettering_on_message_expiration": True,
                "requires_session": name in SESSION_QUEUES,
                "requires_duplicate_detection": name == "d",
                "duplicate_detection_history_time_window_ms": WINDOW_MS,
                "forward_to": onward,
                "forward_dead_lettered_messages_to": "dlq" if name == "q" else None,
                "enable_partitioning": name in ("p", "y"),
                **more,
            }
        )

    def create(self) -> None:
        engine = self.engine
        for name in ("dlq", "q", "d", "s", "f", "g", "h", *(("p", "x", "y") if self.partitioned else ())):
            engine.create_queue(name, self.describe(name))
        engine.hubs.create("hub", EventHubDescription(partition_count=2))
        self._topic("t", {"a": None, "b": SqlFilter("x = 1"), "c": None, "e": None})
        if self.partitioned:
            self._topic("u", {"a": None, "b": SqlFilter("x = 1")})
        self.commit()

    def _topic(self, topic: str, subscriptions: dict[str, Any]) -> None:
        self.engine.create_topic(topic, TopicDescription(enable_partitioning=topic == "u"))
        for name, chosen in subscriptions.items():
            settings = SubscriptionDescription(
                lock_duration_ms=LOCK_MS,
                max_delivery_count=3,
                dead_lettering_on_message_expiration=True,
                forward_to="q" if name == "c" else None,
            )
            rule = RuleDescription("only", chosen) if chosen is not None else None
            if name == "e":
                rule = RuleDescription("marked", SqlFilter("1 = 1"), SqlAction("SET seen = 1"))
            self.engine.create_subscription(topic, name, settings, rule)

    def commit(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self._commit(self.engine, self.main)
            for store in self.stores or ():
                if store.engine is not None:
                    self._commit(store.engine, store.journal)

    def _commit(self, engine: Engine, journal: Any) -> None:
        with suppress(StoreError):
            commit = engine.begin_commit()
            if commit is None:
                return
            if self._is_busy and self.chance.random() < 0.1:  # something is staged while the disk writes
                self.step(within=True)
            try:
                journal.sync()
            except StoreError as error:
                failure = error
                _run(lambda: engine.fail_commit(commit, failure))
                return
            _run(lambda: engine.end_commit(commit))

    # ---- what is sent

    def message(self, name: str, *, message_id: str | None = None, ttl_ms: int | None = None, x: int = 0) -> bytes:
        return section.encode_message(
            name.encode(),
            header=section.Header(ttl_ms=ttl_ms),
            properties={"message_id": message_id or name, "group_id": self.chance.choice(SESSIONS)},
            application_properties={"x": x, "n": name},
        )

    def _new(self, path: str, home: str = "") -> tuple[str, bytes, list[tuple[str, str]]]:
        """A name, its message, and what is expected of it."""
        self.count += 1
        name = f"{home or path}-{self.count}"
        self.number_of[name] = self.count
        self.sent_to[name] = f"{home} {path}"
        x = self.chance.randrange(2)
        ttl_ms = self.chance.choice([None, None, None, 4_000]) if path not in self.sessions else None
        wanted = [(group, name) for group in self.targets[path] if x or group not in ("b", "ub")]
        return name, self.message(name, ttl_ms=ttl_ms, x=x), wanted

    def _expect(self, wanted: Sequence[tuple[str, str]]) -> tuple[Callable[[], None], Callable[[Exception], None]]:
        for each in wanted:
            self.state.setdefault(each, "perhaps")
        reported: list[str] = []

        def durable() -> None:
            assert not reported, (reported, wanted)
            reported.append("durable")
            for each in wanted:
                if self.state[each] == "perhaps":
                    self.state[each] = "there"

        def failed(error: Exception) -> None:
            assert not reported, (reported, wanted, error)
            reported.append("failed")

        return durable, failed

    def send(self) -> None:
        path = self.chance.choice(list(self.targets))
        made = [self._new(path) for _ in range(self.chance.choice([1, 1, 2, 7]))]
        if path in ("p", "y", "u", "x"):
            made = made[:1]
        wanted = [each for _, _, expected in made for each in expected]
        durable, failed = self._expect(wanted)
        try:
            self.engine.sender(path).accept([payload for _, payload, _ in made], durable, failed)
        except IsthmusError:
            return
        if path == "d":
            self.recent.append((made[0][0], self.clock.wall_ms()))

    def send_again(self) -> None:
        """A message whose id was seen: it is dropped, or is the first of its kind."""
        if not self.recent:
            return
        name, at_ms = self.chance.choice(self.recent)
        if self.clock.wall_ms() - at_ms >= WINDOW_MS - 1:
            return
        self.unordered.add(name)
        durable, failed = self._expect([("d", name)])
        with suppress(IsthmusError):
            self.engine.sender("d").accept([self.message(name)], durable, failed)

    def send_copies(self) -> None:
        """A route's copies, in order of their source."""
        path = self.chance.choice([each for each in ("q", "d", "s", "t", "p", "u", "f") if each in self.targets])
        payloads, wanted = [], []
        source = self.chance.choice("AB")
        for _ in range(self.chance.choice([1, 3])):
            name = self._new(path)[0]
            self.unordered.add(name)
            self.copied += 1
            hop = (f"{source}/{path}", "id", str(self.copied), str(self.copied), "2026-01-01T00:00:00.000Z")
            been = dict(zip(HOP_PROPERTIES, hop, strict=True)) | {DIGEST: digest(name.encode(), name.encode())}
            payloads.append(
                Copy(
                    section.encode_message(
                        name.encode(),
                        properties={"message_id": "same", "group_id": self.chance.choice(SESSIONS)},
                        application_properties={"x": 1, "n": name, **been},
                    )
                )
            )
            wanted += [(group, name) for group in self.targets[path]]
        self.copies.append((path, payloads, self.clock.wall_ms(), wanted))
        self._copy(path, payloads, wanted)

    def _copy(self, path: str, payloads: list[bytes], wanted: list[tuple[str, str]]) -> None:
        durable, failed = self._expect(wanted)
        with suppress(IsthmusError):
            self.engine.sender(path).accept(payloads, durable, failed)

    def send_copies_again(self) -> None:
        """As after a lost connection: all, or what came last."""
        if not self.copies:
            return
        path, payloads, at_ms, wanted = self.chance.choice(self.copies[-5:])
        if abs(self.clock.wall_ms() - at_ms) < WINDOW_MS - 1:
            self._copy(path, payloads, wanted)

    def set_clock(self) -> None:
        """A step of the wall clock, well within the windows of detection."""
        self.clock.set_wall(self.clock.wall_ms() + self.chance.choice([-9_000, -1_000, 1_000, 9_000]))

    def delete_batch(self) -> None:
        path = self.chance.choice(self._paths())
        if path in self.sessions or path in ("p", "y") or path.startswith(("u/", "p/", "x/", "y/")):
            return
        group = self._group_of(path)
        with suppress(IsthmusError):
            queue = self.engine.receiver(path)
            here = [(group, _name_of(each)) for each in queue.peek(0, 10_000) if not _state_of(each)]
            try:
                queue.delete_batch(2, self.chance.choice([None, self.clock.wall_ms() - 2_000]))
                left = {(group, _name_of(each)) for each in queue.peek(0, 10_000)}
            except IsthmusError:
                left = set()  # what was deleted is not known
            self._leaves([each for each in here if each in self.state and each not in left])

    def send_via(self) -> None:
        home, path = self.chance.choice([("q", "d"), ("q", "s"), ("q", "t"), ("d", "q"), ("s", "q")])
        name, payload, wanted = self._new(path, home)
        self.unordered.add(name)
        # What the destination does not accept is at the entity that it was sent via.
        durable, failed = self._expect(wanted)
        with suppress(IsthmusError):
            self.engine.via(home, path).accept([payload], durable, failed)

    def schedule(self) -> None:
        path = self.chance.choice(list(self.targets))
        name, payload, wanted = self._new(path)
        self.unordered.add(name)
        due_ms = self.clock.wall_ms() + self.chance.choice([-5, 1_000, 8_000, 20_000])
        arrives, failed = self._expect(wanted)
        numbers: list[int] = []

        def durable() -> None:
            arrives()
            self.scheduled.append((path, name, numbers[0]))  # reported now: before, another message may get the number

        with suppress(IsthmusError):
            numbers += self.engine.sender(path).schedule([(payload, due_ms)], durable, failed)

    def cancel(self) -> None:
        if not self.scheduled:
            return
        path, name, number = self.scheduled.pop(self.chance.randrange(len(self.scheduled)))
        removed, failed = self._going([each for each in self.state if each[1] == name])
        with suppress(IsthmusError):
            self.engine.sender(path).cancel_scheduled([number], removed, failed)
            self._leaves([each for each in self.state if each[1] == name])

    # ---- what is received

    def _going(self, wanted: Sequence[tuple[str, str]]) -> tuple[Callable[[], None], Callable[[Exception], None]]:
        reported: list[str] = []

        def removed() -> None:
            assert not reported, (reported, wanted)
            reported.append("durable")
            for each in wanted:
                self.state[each] = "removed"

        def failed(error: Exception) -> None:
            assert not reported, (reported, wanted, error)
            reported.append("failed")

        return removed, failed

    def _leaves(self, wanted: Sequence[tuple[str, str]]) -> None:
        for each in wanted:
            if self.state[each] != "removed":
                self.state[each] = "perhaps removed"

    def _group_of(self, path: str) -> str:
        place = path.partition("/$")[0]
        return next(group for group, members in self.groups.items() if place in members)

    def _paths(self) -> list[str]:
        paths = [path for members in self.groups.values() for path in members if path not in ("f", "g", "h", "x")]
        dead = [f"{path}/$DeadLetterQueue" for members in self.groups.values() for path in members]
        return [path for path in paths if not path.endswith("/c")] + dead

    def _got(self, queue: Any, path: str, acquired: Acquired) -> list[LockedMessage]:
        return [
            LockedMessage(queue, path, _name_of(payload), tag, sequence)
            for payload, tag, sequence in zip(acquired.payloads, acquired.tags, acquired.sequences, strict=True)
        ]

    def receive(self) -> None:
        path = self.chance.choice(self._paths())
        if path in self.sessions:
            return
        with suppress(IsthmusError):
            queue = self.engine.receiver(path)
            acquired = queue.acquire(self.chance.choice([1, 2, 5]))
            if acquired is not None:
                self.locked += self._got(queue, path, acquired)

    def take(self) -> None:
        """Receive and delete: what is reported as failed is there as before."""
        path = self.chance.choice(self._paths())
        if path in self.sessions:
            return
        box: list[tuple[Callable[[], None], Callable[[Exception], None]]] = []
        with suppress(IsthmusError):
            queue = self.engine.receiver(path)
            acquired = _take_from(
                queue,
                self.chance.choice([0, 1, 3]),
                on_durable=lambda: box[0][0](),  # noqa: PLW0108 - there is nothing in the box yet
                on_failed=lambda error: box[0][1](error),  # noqa: PLW0108 - likewise
            )
            if acquired is not None:
                wanted = [(self._group_of(path), _name_of(each)) for each in acquired.payloads]
                before = {each: self.state[each] for each in wanted}
                removed, failed = self._going(wanted)

                def back(error: Exception) -> None:
                    failed(error)
                    kept = [
                        each for each in wanted if self.state[each] == "perhaps removed" and each[0] not in self.deleted
                    ]
                    self.state.update({each: before[each] for each in kept})

                box.append((removed, back))
                self._leaves(wanted)

    def open_session(self) -> None:
        path = self.chance.choice([each for each in self.sessions if each in self._paths()])
        with suppress(IsthmusError):
            queue: Any = self.engine.receiver(path)
            if self.chance.random() < 0.5:
                hold = queue.sessions.next_session(self, str(self.count))
            else:
                hold = queue.sessions.open_session(self.chance.choice(SESSIONS), self, str(self.count))
            if hold is not None:
                self.holds.append(hold)

    def use_session(self) -> None:
        self.holds = [hold for hold in self.holds if not hold.is_over]
        if not self.holds:
            return
        hold = self.chance.choice(self.holds)
        with suppress(IsthmusError):
            match self.chance.randrange(6):
                case 0:
                    hold.release()
                    self.holds.remove(hold)
                case 1:
                    hold.renew()
                case 2:
                    hold.set_state(self.chance.choice([None, b"state"]))
                case _:
                    acquired = hold.messages.acquire(self.chance.choice([1, 4]))
                    if acquired is not None:
                        self.locked += self._got(hold.messages, hold.messages.path, acquired)

    def settle(self) -> None:
        if not self.locked:
            return
        first = self.chance.choice(self.locked)
        some = [each for each in self.locked if each.queue is first.queue]
        chosen = some[: self.chance.choice([1, 1, 3, 9])] if self.chance.random() < 0.5 else [first]
        if getattr(first.queue, "slots", None) is not None:
            chosen = [each for each in chosen if each.sequence >> 48 == chosen[0].sequence >> 48]
        for each in chosen:
            self.locked.remove(each)
        tokens = [each.token for each in chosen]
        flags: list[bool] = []
        wanted = [(self._group_of(each.path), each.name) for each in chosen]
        with suppress(IsthmusError):
            match self.chance.randrange(8):
                case 0:
                    first.queue.abandon(tokens, {"k": 1} if self.chance.random() < 0.3 else None)
                case 1:
                    first.queue.release(tokens)
                case 2:
                    flags = first.queue.defer(tokens)
                    for each, ok in zip(chosen, flags, strict=True):
                        if ok:
                            self.deferred.append((each.path, each.sequence))
                case 3:
                    first.queue.dead_letter(tokens, "why", None)
                case 4:
                    first.queue.renew(tokens)
                    self.locked += chosen
                case 5 if self.transactions:
                    self._enlist(first.queue, tokens, wanted)
                case _:
                    self._complete(first.queue, tokens, wanted)

    def _complete(self, queue: Any, tokens: list[bytes], wanted: list[tuple[str, str]]) -> None:
        flags: list[bool] = []

        def durable() -> None:
            for each, ok in zip(wanted, flags, strict=True):
                if ok:
                    self.state[each] = "removed"

        silent = self.chance.random() < 0.2
        flags += queue.complete(tokens) if silent else queue.complete(tokens, durable, lambda error: None)
        self._leaves([each for each, ok in zip(wanted, flags, strict=True) if ok])

    def fetch_deferred(self) -> None:
        if not self.deferred:
            return
        path, sequence = self.chance.choice(self.deferred)
        if path in self.sessions:
            hold = next((each for each in self.holds if each.messages.path == path and not each.is_over), None)
            queue: Any = hold.messages if hold is not None else None
        else:
            with suppress(IsthmusError):
                queue = self.engine.receiver(path)
        with suppress(IsthmusError, UnboundLocalError, AttributeError):
            self.locked += self._got(queue, path, queue.receive_deferred([sequence]))

    # ---- event hubs

    def send_events(self) -> None:
        hub: Any = self.engine.hubs.find("hub")
        names = []
        for _ in range(self.chance.choice([1, 4])):
            self.count += 1
            names.append(f"event-{self.count}")
        wanted = [("hub", name) for name in names]
        durable, failed = self._expect(wanted)
        with suppress(IsthmusError):
            hub.accept([self.message(name) for name in names], self.chance.choice(hub.partitions), durable, failed)

    def read_events(self) -> None:
        hub: Any = self.engine.hubs.find("hub")
        if len(self.cursors) < 3:
            partition = self.chance.choice(hub.partitions)
            partition.add_listener(lambda: None)
            self.cursors.append(Cursor(partition, self.chance.choice([partition.begin, partition.committed.next])))
        cursor = self.chance.choice(self.cursors)
        with suppress(IsthmusError):
            self._see(cursor, cursor.take(5, 1 << 20))

    def _see(self, cursor: Cursor, payloads: Sequence[bytes]) -> list[str]:
        first = cursor.next - len(payloads)
        seen = []
        for sequence, payload in enumerate(payloads, first):
            name = _name_of(payload)
            assert _sequence_of(payload) == sequence
            assert self.events.setdefault((cursor.partition.number, sequence), name) == name
            seen.append(name)
        return seen

    def _read_all_events(self) -> Iterator[str]:
        hub: Any = self.engine.hubs.find("hub")
        for partition in hub.partitions:
            cursor = Cursor(partition, 0)
            last = 0
            while payloads := cursor.take(7, 1 << 20):
                for name in self._see(cursor, payloads):
                    number = int(name.rpartition("-")[2])
                    assert number > last, "events of one sender stand in their order"
                    last = number
                    yield name
            state = partition.committed
            assert cursor.next == state.next

    # ---- transactions

    def begin(self) -> None:
        if len(self.transactions) < 2:
            transaction = self.engine.transaction()
            transaction.wanted, transaction.going = [], []  # type: ignore[attr-defined]
            self.transactions.append(transaction)

    def join(self) -> None:
        if not self.transactions:
            return
        transaction: Any = self.chance.choice(self.transactions)
        path = transaction.entity or self.chance.choice(
            [each for each in ("q", "d", "s", "t", "p") if each in self.targets]
        )
        if path not in self.targets:
            return
        name, payload, wanted = self._new(path)
        self.unordered.add(name)
        with suppress(IsthmusError):
            match self.chance.randrange(4):
                case 0:
                    due_ms = self.clock.wall_ms() + 5_000
                    transaction.schedule(self.engine.sender(path), [(payload, due_ms)], _nothing, _nothing)
                case 1 if self.scheduled:
                    there, other, number = self.chance.choice(self.scheduled)
                    if there == path:
                        transaction.cancel_scheduled(self.engine.sender(path), [number])
                        transaction.going += [each for each in self.state if each[1] == other]
                    return
                case 2 if transaction.entity in ("q", "d", "s"):
                    to = "q" if path != "q" else "d"
                    name, payload, wanted = self._new(to, path)
                    self.unordered.add(name)
                    transaction.send(self.engine.via(path, to), [payload])
                case _:
                    transaction.send(self.engine.sender(path), [payload])
            transaction.wanted += wanted

    def _enlist(self, queue: Any, tokens: list[bytes], wanted: list[tuple[str, str]]) -> None:
        transaction: Any = self.chance.choice(self.transactions)
        settle = self.chance.choice([queue.complete, queue.abandon, queue.dead_letter])
        transaction.settle(queue, tokens, settle, lambda ending: None)
        if settle == queue.complete:
            transaction.going += wanted

    def end(self) -> None:
        if not self.transactions:
            return
        transaction: Any = self.transactions.pop(self.chance.randrange(len(self.transactions)))
        if self.chance.random() < 0.2:
            transaction.rollback()
            return
        arrives, failed = self._expect(transaction.wanted)
        goes, _ = self._going(transaction.going)

        def committed() -> None:
            arrives()
            goes()

        before = {each: self.state[each] for each in transaction.going}
        self._leaves(transaction.going)
        try:
            transaction.commit(committed, failed)
        except StoreError:
            return
        except IsthmusError:
            for each in transaction.wanted:
                del self.state[each]
            self.state.update(before)

    # ---- settings, time, faults

    def change(self) -> None:
        name = self.chance.choice(["q", "d", "dlq", "f", "g", "h", "s"] + (["p", "x"] if self.partitioned else []))
        status = self.chance.choice(
            [EntityStatus.ACTIVE, EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED, EntityStatus.RECEIVE_DISABLED]
        )
        more: dict[str, Any] = {"max_delivery_count": self.chance.choice([2, 3, 10])}
        if name in ONWARD and self.chance.random() < 0.3:
            more["forward_to"] = None
        with suppress(IsthmusError):
            self.engine.update_queue(name, self.describe(name, status=status, **more))

    def change_rule(self) -> None:
        """Another rule that selects the same."""
        with suppress(IsthmusError):
            text = self.chance.choice(["x = 1", "x = 1 AND 2 = 2", "NOT x = 0"])
            self.engine.update_rule("t", "b", RuleDescription("only", SqlFilter(text)))

    def wait(self) -> None:
        self.clock.advance(self.chance.choice([1, 100, 1_000, 3_000, 6_000, 11_000]))
        self.tick()

    def tick(self) -> None:
        with suppress(StoreError):
            self.engine.tick()

    def break_something(self) -> None:
        journal = self.chance.choice(self.journals)
        match self.chance.randrange(5):
            case 0:
                journal.fail_writes = OSError("no room")
            case 1:
                journal.fail_syncs = OSError("broken")
            case 2:
                journal.fail_reopen = True
                journal.fail_writes = OSError("gone")
            case _:
                journal.reads_left = self.chance.choice([self.chance.randrange(6), self.chance.randrange(60)])
                journal.bad_reads = self.chance.choice([1, 1, 3, 30])

    def heal(self) -> None:
        for journal in self.journals:
            journal.heal()

    def retry(self) -> None:
        with suppress(StoreError):
            self.engine.probe()
        if self.stores is not None:
            self.stores.retry()

    def kill(self) -> None:
        self.heal()
        for journal in self.journals:
            journal.crash(self.chance.randrange(journal.unsynced_count + 1))
        self.start()

    # Where bodies of large messages are stored.
    bodies: BlobFolder | None = None
    # Groups whose entities may be deleted meanwhile.
    deleted: ClassVar[frozenset[str]] = frozenset()

    # Operations and how often they come.
    STEPS: ClassVar[dict[str, int]] = {
        "send": 24,
        "send_again": 3,
        "send_copies": 5,
        "send_copies_again": 4,
        "set_clock": 1,
        "send_events": 5,
        "read_events": 5,
        "delete_batch": 1,
        "send_via": 4,
        "schedule": 5,
        "cancel": 2,
        "receive": 16,
        "take": 6,
        "open_session": 6,
        "use_session": 14,
        "settle": 18,
        "fetch_deferred": 3,
        "begin": 3,
        "join": 6,
        "end": 3,
        "change": 2,
        "change_rule": 1,
        "wait": 8,
        "tick": 4,
        "break_something": 4,
        "heal": 6,
        "retry": 2,
        "kill": 1,
        "commit": 24,
    }

    def step(self, *, within: bool = False) -> None:
        """One random operation."""
        self._is_busy = True
        name = self.chance.choices(list(self.STEPS), list(self.STEPS.values()))[0]
        if within and name in ("commit", "kill"):
            return
        self.operations[name] += 1
        getattr(self, name)()

    # ---- the account

    def come_to_rest(self) -> None:
        """Everything works again, nothing is locked, scheduled, staged or in transit."""
        self._is_busy = False
        self.heal()
        for _ in range(3):
            self.retry()
            self.commit(2)
        if self.chance.random() < 0.5:
            self.commit(3)
            self.kill()
        for name in ("dlq", "q", "d", "s", "f", "g", "h", *(("p", "x", "y") if self.partitioned else ())):
            self.engine.update_queue(name, self.describe(name))
        for transaction in self.transactions:
            transaction.rollback()
        self.transactions.clear()
        for hold in self.holds:
            hold.release()
        self.holds.clear()
        self.locked.clear()
        self.scheduled.clear()
        for _ in range(40):
            self.commit(3)
            self.clock.advance(6_000)
            for _ in range(60):
                due_ms = self.engine.tick()
                self.commit(2)
                for engine in (self.engine, *(store.engine for store in self.stores or ())):
                    engine.fan_out()
                self.commit(2)
                if due_ms is None or due_ms > self.clock.wall_ms():
                    break
            else:
                raise AssertionError("tick never comes to rest")
        assert not any(engine.is_fanning_out for engine in (self.engine, *(s.engine for s in self.stores or ())))

    def check(self) -> None:
        """See the module's invariants; everything found is consumed."""
        self.come_to_rest()
        found: Counter[tuple[str, str]] = Counter()
        for group, members in self.groups.items():
            for place in members:
                for path in (place, f"{place}/$DeadLetterQueue", f"{place}/$Transfer/$DeadLetterQueue"):
                    for name in self._drain(path):
                        found[group, name] += 1
        for name in self._read_all_events():
            if ("hub", name) in self.state:  # others were looked at before
                found["hub", name] += 1
        # What was sent via an entity and not accepted is in that one's transfer dead-letter queue.
        for key in [key for key in found if key not in self.state]:
            group, name = key
            others = [each for each in self.state if each[1] == name]
            assert others, f"{name} is in {group}, where it was not sent"
            home = self.sent_to[name].split()[0]
            assert group == self._group_of(home) if home in self.targets else False, (key, self.sent_to[name])
            for each in others:
                found[each] += found[key]
            del found[key]
        wrong = []
        for key, state in self.state.items():
            count = found[key]
            allowed = {"there": (1,), "removed": (0,)}.get(state, (0, 1))
            if count not in allowed:
                wrong.append((key, state, count))
        assert not wrong, wrong
        self.state.clear()
        self.recent.clear()
        self.copies.clear()
        self.deferred.clear()

    def _drain(self, path: str) -> list[str]:
        queue: Any = self.engine.receiver(path)
        seen = []
        start = 0
        while payloads := queue.peek(start, 1000):
            seen += payloads
            start = _sequence_of(payloads[-1]) + 1
        names = [_name_of(each) for each in seen]
        runtime = self.engine.runtime(path)
        is_main = "/$" not in path and path != "dlq"  # dead letters are in the order in which they were dead-lettered
        counted = queue.active_count + queue.deferred_count + queue.scheduled_count
        assert counted == len(names), (path, counted, names, runtime)
        if is_main:
            self._check_order(path, seen)
        taken: list[str] = []
        if path in self.sessions:
            while (hold := queue.sessions.next_session(self, "drain")) is not None:
                while (acquired := hold.messages.acquire(100)) is not None:
                    taken += map(_name_of, acquired.payloads)
                    hold.messages.complete(acquired.tags)
                hold.release()
                self.commit()
        elif queue.onward_path if hasattr(queue, "onward_path") else getattr(queue, "relay", None):
            assert not names, (path, names)
        else:
            while (acquired := queue.acquire(100)) is not None:
                taken += map(_name_of, acquired.payloads)
                queue_tokens: dict[int, list[bytes]] = {}
                for tag in acquired.tags:
                    queue_tokens.setdefault(tag[8] << 8 | tag[9], []).append(tag)
                for tokens in queue_tokens.values():
                    queue.complete(tokens)
                self.commit()
        self.commit(2)
        for payload in [each for each in seen if _state_of(each) == 1]:
            sequence = _sequence_of(payload)
            if path in self.sessions:
                hold = queue.sessions.open_session(_session_of(payload), self, "deferred")
                acquired = hold.messages.receive_deferred([sequence])
                hold.messages.complete(acquired.tags)
                hold.release()
            else:
                acquired = queue.receive_deferred([sequence])
                queue.complete(acquired.tags)
            taken += map(_name_of, acquired.payloads)
            self.commit()
        assert sorted(taken) == sorted(names), (path, Counter(names) - Counter(taken), Counter(taken) - Counter(names))
        self.commit(2)
        assert not queue.active_count, path
        assert not queue.deferred_count, path
        assert queue.size_bytes >= 0
        return names

    def _check_order(self, path: str, payloads: Sequence[Any]) -> None:
        last: dict[tuple[str, ...], int] = {}
        for payload in payloads:
            name = _name_of(payload)
            if name in self.unordered or _state_of(payload):
                continue
            key = (self.sent_to[name], str(_sequence_of(payload) >> 48)) + (
                (_session_of(payload),) if path in self.sessions else ()
            )
            assert self.number_of[name] > last.get(key, 0), (path, name, list(map(_name_of, payloads)))
            last[key] = self.number_of[name]


def _nothing(*_: object) -> None:
    """Nothing is reported."""


def _take_from(queue: Any, limit: int, on_durable: Callable[[], None], on_failed: Callable[[Exception], None]) -> Any:
    """Messages deleted on delivery; 0: one that is locked first, as a large one is while its body is read."""
    if limit:
        return queue.acquire(limit, lock=False, on_durable=on_durable, on_failed=on_failed)
    locked = queue.acquire(1)
    return None if locked is None else queue.delete_locked(locked.tags[0], on_durable, on_failed)


def _run(run: Callable[[], None]) -> None:
    """What a disk that refuses a read raises is logged by the owner of an engine; anything else is a fault."""
    try:
        run()
    except StoreError:
        pass
    except ExceptionGroup as group:
        _, rest = group.split(StoreError)
        if rest is not None:
            raise rest from None


def _read(payload: Any, name: str) -> Any:
    payload = _front(payload)
    annotations = section.decode_map(payload, section.locate(payload).message_annotations)
    return next((value for key, value in annotations.items() if str(key) == name), 0)


def _sequence_of(payload: Any) -> int:
    return int(_read(payload, "x-opt-sequence-number"))


def _state_of(payload: Any) -> int:
    return int(_read(payload, "x-opt-message-state"))


def _session_of(payload: Any) -> str:
    payload = _front(payload)
    return str(section.decode_properties(payload, section.locate(payload).properties)["group_id"])


def _front(payload: Any) -> bytes:
    return payload.front if isinstance(payload, Large) else payload


def _name_of(payload: Any) -> str:
    front = _front(payload)
    return str(section.decode_map(front, section.locate(front).application_properties)["n"])
