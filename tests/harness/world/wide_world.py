"""The namespace of `conservation` with more that happens to it.

What it is: session states, large messages with their bodies, entities that are deleted and made again, windows of detection
that are changed, dead letters that are put back, and settings, each with its account. What it is not: the run itself, and the
account of messages (`conservation`).

Invariants, besides those of `conservation` (checked whenever the namespace has nothing left to do):
    I5. A session's state is the last one that was reported as durable, or a later one with an unknown outcome; so is a setting.
    I6. The body of a large message is there as long as its message, and when no message is left none is.
    I7. What was in a deleted entity is not in one that is made again by its name.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from harness.world.conservation import LOCK_MS, SESSIONS, WINDOW_MS, World, _name_of, _nothing
from isthmus.amqp import section
from isthmus.entities import Copy, Large, QueueDescription, SubscriptionDescription, TopicDescription
from isthmus.errors import IsthmusError, StoreError
from isthmus.message import digest
from isthmus.message.name import DIGEST, HOP_PROPERTIES
from isthmus.store import BlobFolder

__all__ = ["WideWorld"]

# More than a record takes in.
BODY_BYTES = 2 << 20
LARGE: dict[str, Any] = {"max_message_size_in_kilobytes": 102_400}


class History:
    """Values of one thing in the order in which they were set, and which of them were reported as durable."""

    def __init__(self, value: Any) -> None:
        self._values: list[list[Any]] = [[value, True]]

    def set(self, value: Any) -> Callable[[], None]:
        """A value is staged; call the result when it is durable."""
        item = [value, False]
        self._values.append(item)

        def durable() -> None:
            item[1] = True

        return durable

    def check(self, value: Any) -> None:
        """See that a value is one that may be found now."""
        last = max(index for index, (_, is_durable) in enumerate(self._values) if is_durable)
        assert value in [each for each, _ in self._values[last:]], (value, self._values[-6:])


class WideWorld(World):
    """As `World`.

    Args:
        large: where bodies lie.
    """

    def __init__(self, seed: int, large: Path, *, partitioned: bool = False, folder: Path | None = None) -> None:
        self.bodies = BlobFolder(large)
        self.states: dict[tuple[str, str], History] = {}
        self.counts: dict[str, History] = {}
        self.equals: list[tuple[str, str, int]] = []
        super().__init__(seed, partitioned=partitioned, folder=folder)
        self.groups = {**self.groups, "z": ("z", "zf"), "td1": ("td/Subscriptions/a",), "td2": ("td/Subscriptions/s",), "sd": ("sd",)}  # fmt: skip
        self.targets = {**self.targets, "z": ("z",), "zf": ("z",), "td": ("td1", "td2"), "sd": ("sd",)}
        # And a topic that feeds sessions.
        self.sessions = (*self.sessions, "sd", "td/Subscriptions/s", "td")
        if partitioned:
            more = {"p": (*self.groups["p"], "m"), "q": (*self.groups["q"], "n"), "pz": ("pz", "mz")}
            self.groups.update(more)
            self.targets.update({"m": ("p",), "n": ("q",), "pz": ("pz",), "mz": ("pz",)})

    @property
    def added(self) -> tuple[str, ...]:
        """The queues that `World` does not have."""
        return ("z", "zf", "sd", *(("pz", "m", "n", "mz") if self.partitioned else ()))

    def describe(self, name: str, **more: Any) -> QueueDescription:
        onward = {"zf": "z", "m": "p", "n": "q", "mz": "pz"}.get(name)
        settings: dict[str, Any] = {**LARGE}
        if onward is not None:
            settings["forward_to"] = onward
        if name in ("n", "pz"):
            settings["enable_partitioning"] = True
        if name == "sd":
            settings |= {"requires_session": True, "requires_duplicate_detection": True}
        return replace(super().describe(name), **{**settings, **more})

    def create(self) -> None:
        super().create()
        for name in self.added:
            self.engine.create_queue(name, self.describe(name))
        window = {"duplicate_detection_history_time_window_ms": WINDOW_MS}
        self.engine.create_topic("td", TopicDescription(requires_duplicate_detection=True, **window, **LARGE))
        for name in ("a", "s"):
            settings = SubscriptionDescription(
                lock_duration_ms=LOCK_MS, max_delivery_count=3, requires_session=name == "s"
            )
            self.engine.create_subscription("td", name, settings)
        self.engine.update_topic("t", TopicDescription(**LARGE))
        self.commit()

    def _paths(self) -> list[str]:
        return [path for path in super()._paths() if path not in ("zf", "m", "n", "mz")]

    # ---- what is sent

    def send(self) -> None:
        path = self.chance.choice(list(self.targets))
        if path in ("td", "sd"):
            return
        made = [self._new(path) for _ in range(self.chance.choice([1, 1, 2, 7]))]
        if path in ("p", "y", "u", "x", "n", "pz"):
            made = made[:1]
        if path in ("m", "n", "mz", "pz"):
            self.unordered.update(name for name, _, _ in made)
        durable, failed = self._expect([each for _, _, expected in made for each in expected])
        with suppress(IsthmusError):
            self.engine.sender(path).accept([payload for _, payload, _ in made], durable, failed)
            if path == "d":
                self.recent.append((made[0][0], self.clock.wall_ms()))

    def _one(self, name: str) -> bytes:
        session = SESSIONS[int(name.rpartition("-")[2]) % len(SESSIONS)]
        properties = {"message_id": name, "group_id": session}
        return section.encode_message(name.encode(), properties=properties, application_properties={"x": 1, "n": name})

    def send_one(self) -> None:
        """To an entity that detects duplicates, with sessions or subscriptions."""
        path = self.chance.choice(["td", "sd"])
        name = self._new(path)[0]
        self.unordered.add(name)
        durable, failed = self._expect([(group, name) for group in self.targets[path]])
        with suppress(IsthmusError):
            self.engine.sender(path).accept([self._one(name)], durable, failed)
            self.equals.append((path, name, self.clock.wall_ms()))

    def send_equal(self) -> None:
        if not self.equals:
            return
        path, name, at_ms = self.chance.choice(self.equals[-8:])
        now_ms = self.clock.wall_ms()
        if abs(now_ms - at_ms) >= WINDOW_MS - 10_000:
            return
        durable, failed = self._expect([(group, name) for group in self.targets[path]])
        with suppress(IsthmusError):
            if self.chance.random() < 0.3:
                self.engine.sender(path).schedule([(self._one(name), now_ms + 3_000)], durable, failed)
            else:
                self.engine.sender(path).accept([self._one(name)], durable, failed)

    def send_large(self) -> None:
        assert self.bodies is not None
        path = self.chance.choice([path for path in self.targets if path not in ("x", "p", "y", "u", "n", "pz")])
        name, payload, wanted = self._new(path)
        self.unordered.add(name)
        number = self.engine.blobs.reserve()
        writer = self.bodies.create(number)
        body = _body_of(name)
        writer.write([body, bytes(BODY_BYTES - len(body))])
        writer.sync()
        writer.close()
        durable, failed = self._expect(wanted)
        large = Large(payload[: section.locate(payload).body[0]], self.engine.blobs.whole(number, BODY_BYTES))
        with suppress(IsthmusError):
            self.engine.sender(path).accept([large], durable, failed)

    def put_back(self) -> None:
        """Dead letters, as a fail-over brings them."""
        places = ["q", "s", "zf", "t/Subscriptions/a", *(("p", "y") if self.partitioned else ())]
        path = self.chance.choice(places) + "/$DeadLetterQueue"
        self.count += 1
        self.copied += 1
        name = f"{path}-{self.count}"
        self.number_of[name], self.sent_to[name] = self.count, f" {path}"
        self.unordered.add(name)
        hop = (f"R/{path}", "id", str(self.copied), str(self.copied), "2026-01-01T00:00:00.000Z")
        been = dict(zip(HOP_PROPERTIES, hop, strict=True)) | {DIGEST: digest(name.encode(), name.encode())}
        letter = Copy(
            section.encode_message(
                name.encode(),
                properties={"message_id": "same", "group_id": "1"},
                application_properties={"x": 1, "n": name, **been},
            )
        )
        wanted = [(self._group_of(path), name)]
        self.copies.append((path, [letter], self.clock.wall_ms(), wanted))
        self._copy(path, [letter], wanted)

    def _copy(self, path: str, payloads: list[bytes], wanted: list[tuple[str, str]]) -> None:
        durable, failed = self._expect(wanted)
        with suppress(IsthmusError):
            self.engine.sender(path, restores="/$" in path).accept(payloads, durable, failed)

    # ---- sessions

    def use_session(self) -> None:
        self.holds = [hold for hold in self.holds if not hold.is_over]
        if not self.holds:
            return
        hold = self.chance.choice(self.holds)
        with suppress(IsthmusError):
            match self.chance.randrange(8):
                case 0:
                    hold.release()
                    self.holds.remove(hold)
                case 1:
                    hold.renew()
                case 2 | 3:
                    self._set_state(hold, self.chance.choice([None, b"state", b"%d" % self.count]))
                case 4:
                    self._state_of(hold).check(hold.get_state())
                case _:
                    acquired = hold.messages.acquire(self.chance.choice([1, 4]))
                    if acquired is not None:
                        self.locked += self._got(hold.messages, hold.messages.path, acquired)

    def _state_of(self, hold: Any) -> History:
        return self.states.setdefault((hold.messages.path, hold.session_id), History(None))

    def _set_state(self, hold: Any, state: bytes | None) -> None:
        reported: list[Callable[[], None]] = []
        try:
            hold.set_state(state, lambda: reported[0](), _nothing)  # noqa: PLW0108 - there is nothing in the list yet
        except StoreError:
            self._state_of(hold).set(state)
            raise
        reported.append(self._state_of(hold).set(state))

    # ---- entities and settings

    def delete(self) -> None:
        name = self.chance.choice(["z", "pz"] if self.partitioned else ["z"])
        here = [key for key, state in self.state.items() if key[0] == name and state != "removed"]

        def removed() -> None:
            for key in here:
                if self.sent_to[key[1]] == f" {name}":  # what was forwarded may have stayed where it came from
                    self.state[key] = "removed"

        with suppress(IsthmusError):
            self.engine.delete_queue(name)
            self._leaves(here)
            self.engine.promise(removed, _nothing)
        if self.chance.random() < 0.5:
            self.make_again()

    def make_again(self) -> None:
        for name in ("z", "pz") if self.partitioned else ("z",):
            with suppress(IsthmusError):
                self.engine.create_queue(name, self.describe(name))

    def change_count(self) -> None:
        name = self.chance.choice(["zf", "sd"])
        value = self.chance.randrange(3, 50)
        with suppress(IsthmusError):
            described = self.engine.get_queue(name)
            if described is None:
                return
            self.engine.update_queue(name, replace(described, max_delivery_count=value))
            self.engine.promise(self.counts.setdefault(name, History(3)).set(value), _nothing)

    def change_window(self) -> None:
        """None is shorter than that for which duplicates are sent."""
        window = {
            "duplicate_detection_history_time_window_ms": self.chance.choice(
                [WINDOW_MS, WINDOW_MS + 7_000, 3 * WINDOW_MS]
            )
        }
        name = self.chance.choice(["d", "sd", "td"])
        with suppress(IsthmusError):
            if name == "td":
                topic = self.engine.get_topic(name)
                self.engine.update_topic(name, replace(topic, **window))  # type: ignore[type-var]
            else:
                queue = self.engine.get_queue(name)
                self.engine.update_queue(name, replace(queue, **window))  # type: ignore[type-var]

    def keep_house(self) -> None:
        self.clock.advance(self.chance.choice([10_001, 25_000]))
        self.tick()

    deleted: ClassVar[frozenset[str]] = frozenset({"z", "pz"})

    STEPS: ClassVar[dict[str, int]] = {
        **World.STEPS,
        "send_one": 4,
        "send_equal": 4,
        "send_large": 6,
        "put_back": 2,
        "open_session": 8,
        "use_session": 20,
        "delete": 2,
        "make_again": 2,
        "change_count": 2,
        "change_window": 2,
        "keep_house": 1,
    }

    # ---- the account

    def come_to_rest(self) -> None:
        self._is_busy = False
        self.heal()
        for _ in range(3):
            self.retry()
            self.commit(2)
        for name, history in self.counts.items():
            found = self.engine.get_queue(name)
            assert found is not None, name
            history.check(found.max_delivery_count)
        self.counts.clear()
        self.make_again()
        self.commit(4)
        for name in self.added:
            self.engine.update_queue(name, self.describe(name))
        super().come_to_rest()
        for path, session_id in list(self.states):
            queue: Any = self.engine.receiver(path)
            hold = queue.sessions.open_session(session_id, self, "look")
            state = hold.get_state()
            self.states[path, session_id].check(state)
            self.states[path, session_id] = History(state)
            hold.release()
        self.commit(2)

    def check(self) -> None:
        super().check()
        self.equals.clear()
        for _ in range(2):
            gc.collect()
            for _ in range(40):
                self.clock.advance(300)
                self.engine.tick()
                self.commit(2)
        assert self.bodies is not None
        assert not self.bodies.numbers()

    def _drain(self, path: str) -> list[str]:
        assert self.bodies is not None
        queue: Any = self.engine.receiver(path)
        for payload in queue.peek(0, 10_000):
            if isinstance(payload, Large):
                name = _name_of(payload)
                reader = self.bodies.open(payload.blob.number)
                assert reader.read(0, len(_body_of(name))) == _body_of(name)
                reader.close()
        return super()._drain(path)


def _body_of(name: str) -> bytes:
    """How a body begins."""
    return b"\0Su\xb0" + (BODY_BYTES - 8).to_bytes(4, "big") + name.encode() * 3
