"""The namespace of `wide_world` with still more that happens to it.

What it is: receive-and-delete of deferred messages and in sessions, batches deleted in sessions, a subscription that comes and goes
while its topic is copying, queues that forward to topics, and back-ups that are made while all that goes on, each with its account. What it is
not: the run itself, and the account of messages (`conservation`).

Invariants, besides those of `wide_world`:
    I8. A back-up has what was there before it began and was not touched until it ended, once; nothing that was gone before, and nothing that
        was sent after it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from harness.world.conservation import LOCK_MS, FaultyJournal, _name_of, _state_of, _take_from
from harness.world.wide_world import WideWorld
from isthmus.entities import Acquired, QueueDescription, RuleDescription, SqlFilter, SubscriptionDescription
from isthmus.errors import IsthmusError
from isthmus.store import BlobFolder

__all__ = ["WiderWorld"]

# Queues that forward to topics, and those topics.
TO_TOPICS = {"k": "t", "ku": "u"}
# What may happen while a back-up is made.
MEANWHILE = ("send", "send_copies", "receive", "take", "settle", "use_session", "schedule", "tick", "commit", "end")


class WiderWorld(WideWorld):
    """As `WideWorld`, in memory."""

    def __init__(self, seed: int, large: Path, *, partitioned: bool = False) -> None:
        self.large = large
        self.incarnation = 0
        self.answered: set[str] = set()
        self.made: dict[str, int] = {}
        self.shot: Any = None
        self.shots = 0
        super().__init__(seed, large, partitioned=partitioned)
        coming = {"v": ("t/Subscriptions/v",), **({"uv": ("u/Subscriptions/v",)} if partitioned else {})}
        self.groups = {**self.groups, **coming, "k": ("k",), **({"ku": ("ku",)} if partitioned else {})}
        self.targets = {**self.targets, "t": (*self.targets["t"], "v"), "k": (*self.targets["t"], "v")}
        if partitioned:
            self.targets |= {"u": (*self.targets["u"], "uv"), "ku": (*self.targets["u"], "uv")}

    @property
    def added(self) -> tuple[str, ...]:
        return (*super().added, "k", *(("ku",) if self.partitioned else ()))

    def describe(self, name: str, **more: Any) -> QueueDescription:
        if name in TO_TOPICS:
            settings = {"forward_to": TO_TOPICS[name], "enable_partitioning": name == "ku"}
            more = {**settings, **more}
        return super().describe(name, **more)

    def create(self) -> None:
        super().create()
        self.come()
        self.commit()

    def _paths(self) -> list[str]:
        known = [path for path in super()._paths() if path.partition("/$")[0] not in TO_TOPICS]
        return [path for path in known if not path.endswith("/v") and "/v/" not in path] + [
            path for path in ("t/Subscriptions/v",) if self.engine.get_subscription("t", "v") is not None
        ]

    def send_large(self) -> None:
        targets = self.targets
        self.targets = {path: groups for path, groups in targets.items() if path != "ku"}
        try:
            super().send_large()
        finally:
            self.targets = targets

    # ---- a subscription that comes and goes

    def _expect(self, wanted: Sequence[tuple[str, str]]) -> tuple[Callable[[], None], Callable[[Exception], None]]:
        known = [each for each in wanted if each[0] not in ("v", "uv")]
        coming = [each for each in wanted if each[0] in ("v", "uv")]
        durable, failed = super()._expect(known)
        fresh = {each for each in coming if each not in self.state}  # what is sent again may be a duplicate
        self.state.update(dict.fromkeys(fresh, "perhaps"))
        at_send, there = self.incarnation, set(self.answered)

        def done() -> None:
            durable()
            for each in fresh:
                if self.incarnation == at_send and each[0] in there and self.state[each] == "perhaps":
                    self.state[each] = "there"

        return done, failed

    def come(self) -> None:
        settings = SubscriptionDescription(
            lock_duration_ms=LOCK_MS, max_delivery_count=3, dead_lettering_on_message_expiration=True
        )
        for topic in ("t", "u") if self.partitioned else ("t",):
            with suppress(IsthmusError):
                if self.engine.get_subscription(topic, "v") is None:
                    self.engine.create_subscription(topic, "v", settings)
                    self.incarnation += 1
                    self._promise(topic)

    def _promise(self, topic: str) -> None:
        """Its client is told of a new subscription once it is durable; messages that are sent before may miss it."""
        group = "v" if topic == "t" else "uv"
        number = self.made[group] = self.made.get(group, 0) + 1

        def answer() -> None:
            if self.made[group] == number:
                self.answered.add(group)

        self.engine.promise(answer, lambda _: None)

    def leave(self) -> None:
        for group, topic in (("v", "t"), ("uv", "u")) if self.partitioned else (("v", "t"),):
            here = [key for key, state in self.state.items() if key[0] == group and state != "gone"]
            with suppress(IsthmusError):
                self.engine.delete_subscription(topic, "v")
                self.answered.discard(group)
                self.made[group] = self.made.get(group, 0) + 1
                self.incarnation += 1
                self._leaves(here)  # what waits to be copied may still come to one that is made again
        if self.chance.random() < 0.6:
            self.come()

    def change_rules(self) -> None:
        """Another rule for all messages, in one commit or in two."""
        with suppress(IsthmusError):
            for rule in list(self.engine.list_rules("t", "v")):
                self.engine.create_rule("t", "v", RuleDescription(f"r{self.count}", SqlFilter("1 = 1")))
                self.engine.delete_rule("t", "v", rule.name)

    # ---- receive and delete

    def _delete(self, path: str, acquire: Callable[..., Acquired | None]) -> None:
        box: list[tuple[Callable[[], None], Callable[[Exception], None]]] = []
        with suppress(IsthmusError):
            acquired = acquire(
                on_durable=lambda: box[0][0](),  # noqa: PLW0108 - there is nothing in the box yet
                on_failed=lambda error: box[0][1](error),  # noqa: PLW0108 - likewise
            )
            if acquired is None:
                return
            wanted = [(self._group_of(path), _name_of(each)) for each in acquired.payloads]
            before = {each: self.state[each] for each in wanted}
            gone, failed = self._going(wanted)

            def back(error: Exception) -> None:
                failed(error)
                kept = [each for each in wanted if self.state[each] == "perhaps gone" and each[0] not in self.deleted]
                self.state.update({each: before[each] for each in kept})

            box.append((gone, back))
            self._leaves(wanted)

    def take_deferred(self) -> None:
        if not self.deferred:
            return
        path, sequence = self.chance.choice(self.deferred)
        queue: Any = None
        if path in self.sessions:
            queue = next((one.messages for one in self.holds if one.messages.path == path and not one.is_over), None)
        else:
            with suppress(IsthmusError):
                queue = self.engine.receiver(path)
        if queue is not None:
            self._delete(path, lambda **how: queue.receive_deferred([sequence], lock=False, **how))

    def take_in_session(self) -> None:
        self.holds = [hold for hold in self.holds if not hold.is_over]
        if self.holds:
            messages = self.chance.choice(self.holds).messages
            self._delete(messages.path, lambda **how: _take_from(messages, self.chance.choice([0, 1, 4]), **how))

    def delete_in_sessions(self) -> None:
        """In one that is locked, or in all that are free."""
        self.holds = [hold for hold in self.holds if not hold.is_over]
        path = self.chance.choice(["s", "sd", "td/Subscriptions/s"])
        with suppress(IsthmusError):
            queue: Any = self.engine.receiver(path)
            group = self._group_of(path)
            own = [hold.messages for hold in self.holds if hold.messages.path == path]
            target = self.chance.choice([queue, *own])
            here = [(group, _name_of(each)) for each in queue.peek(0, 10_000) if not _state_of(each)]
            try:
                target.delete_batch(3, self.chance.choice([None, self.clock.wall_ms() - 2_000]))
                left = {(group, _name_of(each)) for each in queue.peek(0, 10_000)}
            except IsthmusError:
                left = set()  # what was deleted is not known
            self._leaves([each for each in here if each in self.state and each not in left])

    # ---- back-ups

    def back_up(self) -> None:
        """As the operator's request does it: the stores of fragments, then the catalog's, then the bodies."""
        handover = self.engine.handover
        engine = self.engine
        if handover is not None:
            handover.pause()
        try:
            for _ in range(20):
                self.commit()
                if handover is None or handover.is_quiet:
                    break
            else:
                return
            if any(not store.is_up for store in self.stores or ()) or engine.needs_probe:
                return
            before = dict(self.state)
            fragments = {}
            for index, journal in list(self.fragments.items()):
                fragments[index] = _table_of(journal)
                for _ in range(self.chance.choice([0, 3, 10])):
                    getattr(self, self.chance.choice(MEANWHILE))()
            if any(not store.is_up for store in self.stores or ()) or engine.needs_probe:
                return
            main = _table_of(self.main)
            self.shots += 1
            folder = self.large.with_name(f"{self.large.name}-shot-{self.shots}")
            assert self.bodies is not None
            with self.bodies.kept():
                self.bodies.copy_to(folder)
            if self.shot is not None:
                shutil.rmtree(self.shot[-1], ignore_errors=True)
            self.shot = before, dict(self.state), main, fragments, folder
        finally:
            if handover is not None:
                handover.resume()

    def restore(self) -> bool:
        """Go on from the last back-up; returns whether there is one."""
        if self.shot is None:
            return False
        before, after, main, fragments, folder = self.shot
        self.heal()
        self.main = _journal_of(self.chance, main)
        self.fragments = {index: _journal_of(self.chance, table) for index, table in fragments.items()}
        self.bodies = BlobFolder(folder)
        expected = {("there", "there"): "there", ("gone", "gone"): "gone"}
        self.state = dict.fromkeys(self.state, "gone") | {
            key: expected.get((before.get(key, ""), state), "perhaps") for key, state in after.items()
        }
        self.incarnation += 1
        for known in (self.recent, self.copies, self.equals, self.scheduled, self.deferred):
            known.clear()
        for history in (self.events, self.states, self.counts):
            history.clear()
        self.start()
        return True

    # Groups whose entities may be deleted meanwhile.
    deleted: ClassVar[frozenset[str]] = WideWorld.deleted | {"v", "uv"}

    STEPS: ClassVar[dict[str, int]] = {
        **WideWorld.STEPS,
        "come": 2,
        "leave": 2,
        "change_rules": 2,
        "take_deferred": 4,
        "take_in_session": 6,
        "delete_in_sessions": 2,
        "back_up": 1,
    }

    def come_to_rest(self) -> None:
        self._is_busy = False
        self.heal()
        for _ in range(3):
            self.retry()
            self.commit(2)
        self.come()
        self.commit(3)
        super().come_to_rest()


def _table_of(journal: Any) -> dict[bytes, bytes]:
    """What was written to a journal in memory, synced or not."""
    return dict(journal._table.values)


def _journal_of(chance: Any, values: dict[bytes, bytes]) -> FaultyJournal:
    journal = FaultyJournal(chance)
    batch = journal.batch()
    for key, value in values.items():
        batch.put(key, value)
    journal.write(batch)
    journal.sync()
    return journal
