"""Moves the remaining messages of a queue to the queue of the same name at the other member.

What it is: the drain of a planned fail-over: active messages under peek-lock, session by session where there are sessions,
scheduled messages of queues and topics, and dead letters with their reasons. What it is not: a move of messages
in a subscription (messages cannot be sent to a subscription alone), or of deferred messages (their receiver knows them
by a sequence number, which a copy does not have).

Invariants:
    I1. A message leaves the old member only after the new one has acknowledged its copy, also if the new one is lost meanwhile. Killed in between, both
        have it, and it is moved again: a namespace of isthmus drops the second copy by its key (`isthmus.message.duplicate_key`), any other
        has it twice. (It is never moved to where duplicates are detected by MessageId: see `isthmus.pairing.failover.failover`, I4.)
    I2. Copies are sent in the order of the messages; those of a session in the order of the session.
    I3. A copy differs from its message only in its TimeToLive, which is the remaining one. A dead letter has none.
    I4. Dead letters are moved only to a namespace that puts them into the dead-letter queue.
    I5. A scheduled message that may become due between its copy and its removal stays until it is due: as a message with
        another number it would be moved a second time. Not so at a topic: copies that it has made when due cannot be moved any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from isthmus.amqp import section
from isthmus.entities.queue.run import RunSet
from isthmus.entities.record.amend import with_properties
from isthmus.entities.record.parse import HeadCache, split
from isthmus.errors import IsthmusError, LockLostError, NotAllowedError
from isthmus.message import DUPLICATE_KEYS
from isthmus.message import name as names
from isthmus.message.duplicate_key import moved_from
from isthmus.operations.deliver import UnconfirmedError, deliver
from isthmus.operations.message import sent_again, sequence_of, session_of, state_of
from isthmus.operations.peek import Census, messages
from isthmus.operations.removal.purge import remove
from isthmus.operations.removal.sweep import Taken, sweep
from isthmus.pairing.failover.moved import Moved
from isthmus.transport import Client, Sender

__all__ = ["DEAD_LETTERS", "Moved", "as_copy", "move", "move_dead_letters"]

DEAD_LETTERS = "/$DeadLetterQueue"

_AT_ONCE = 200
# Scheduled messages are removed one by one, each with a round trip to a namespace that may be far away.
_SCHEDULED_AT_ONCE = 50
_SOON_MS = 5_000
_NO_TTL = 0xFFFFFFFF
_QUIET_SECONDS = 0.5
_ACTIVE, _SCHEDULED = 0, 2


def move(source: Client, target: Client, path: str, *, in_sessions: bool, is_topic: bool = False) -> Moved:
    """Move the messages that can be received now, and those scheduled for later than soon (I5).

    Args:
        source: connected to the old member, authorised for the entity.
        target: connected to the new one, likewise.
        path: queue, or topic (scheduled messages).
        in_sessions: whether the queue requires sessions.
        is_topic: whether it is a topic.

    Raises:
        IsthmusError: a member is unreachable or refuses; messages that were not acknowledged are unchanged. Its attribute `moved` is the number
            of moved messages.
    """
    active: dict[str, RunSet] = {}
    scheduled: list[bytes] = []
    for payload in messages(source, path):
        if state_of(payload) == _ACTIVE:
            sequence = sequence_of(payload)
            active.setdefault(session_of(payload) if in_sessions else "", RunSet()).add(sequence, sequence)
        elif state_of(payload) == _SCHEDULED:
            scheduled.append(payload)
    if not active and not scheduled:
        return Moved(0)
    pass_ = _Pass(source, target, path)
    try:
        for session_id, wanted in active.items():
            pass_.carry(wanted, session_id if in_sessions else None)
        pass_.carry_scheduled(scheduled, 0 if is_topic else _SOON_MS)
    except IsthmusError as error:
        error.attributes["moved"] = pass_.count
        raise
    finally:
        pass_.close()
    return Moved(pass_.count, pass_.first_refusal)


def move_dead_letters(source: Client, target: Client, path: str) -> Moved:
    """Move the dead letters of a queue or subscription; none if the new member does not take them.

    Args:
        source: as for `move`.
        target: likewise.
        path: of the queue or subscription.

    Raises:
        IsthmusError: as for `move`.
    """
    path += DEAD_LETTERS
    found = RunSet()
    for payload in messages(source, path):
        if state_of(payload) == _ACTIVE:
            found.add(sequence_of(payload), sequence_of(payload))
    if not found:
        return Moved(0)
    try:
        pass_ = _Pass(source, target, path)
    except NotAllowedError as error:
        return Moved(0, str(error))
    try:
        pass_.carry(found, None)
    except IsthmusError as error:
        error.attributes["moved"] = pass_.count
        raise
    finally:
        pass_.close()
    return Moved(pass_.count, pass_.first_refusal)


class _Pass:
    """One pass over an entity."""

    def __init__(self, source: Client, target: Client, path: str) -> None:
        self._source = source
        self._target = target
        self._path = path
        self._are_dead = path.endswith(DEAD_LETTERS)
        asked = (DUPLICATE_KEYS, names.RESTORES) if self._are_dead else (DUPLICATE_KEYS,)
        self._sender = Sender(target, path, asked).wait_ready()
        self._keeps_keys = bool(source.namespace_id) and self._sender.offers(DUPLICATE_KEYS)
        self.count = 0
        self.first_refusal = ""
        self._lost: IsthmusError | None = None

    def close(self) -> None:
        self._sender.close()

    def carry(self, wanted: RunSet, session_id: str | None) -> None:
        """Move active messages."""

        def take(taken: Sequence[Taken], renew: Callable[[], None]) -> list[Taken]:
            done: list[Taken] = []
            for start in range(0, len(taken), _AT_ONCE):
                part = taken[start : start + _AT_ONCE]
                accepted = self._send([each.payload for each in part], renew, in_order=not self._are_dead)
                done += [each for each, is_accepted in zip(part, accepted, strict=True) if is_accepted]
                if not self.first_refusal and self._lost is None:
                    try:
                        renew()
                    except LockLostError:
                        raise
                    except IsthmusError as error:  # what the new member has acknowledged still leaves the old one
                        self._lost = error
                if self.first_refusal or self._lost is not None:
                    wanted.clear()  # the pass ends: later messages stay behind the refused one
                    break
            return done

        try:
            self.count += sweep(
                self._source,
                self._path,
                wanted,
                take,
                session_id=session_id,
                quiet_seconds=_QUIET_SECONDS,
                at_once=_AT_ONCE,
            )
        except IsthmusError as error:
            self.count += int(error.attributes.get("completed", 0))
            if not isinstance(error, LockLostError):  # else a receiver has the session still, or again
                raise
        self._raise_lost()

    def carry_scheduled(self, payloads: Sequence[bytes], soon_ms: int) -> None:
        """Move scheduled messages, the first due first; their times stay. Those due within `soon_ms` are left."""
        ordered = sorted(payloads, key=_due_ms)
        for start in range(0, len(ordered), _SCHEDULED_AT_ONCE):
            now_ms = time.time_ns() // 1_000_000
            part = [each for each in ordered[start : start + _SCHEDULED_AT_ONCE] if _due_ms(each) >= now_ms + soon_ms]
            if not part:
                continue
            moved = RunSet()
            for payload, is_accepted in zip(part, self._send(part), strict=True):
                if is_accepted:
                    moved.add(sequence_of(payload), sequence_of(payload))
            try:
                self.count += remove(self._source, self._path, Census(RunSet(), RunSet(), moved)).removed
            except IsthmusError as error:
                self.count += int(error.attributes.get("completed", 0))
                raise
            self._raise_lost()

    def _raise_lost(self) -> None:
        """Raise the loss of a member, once what it had acknowledged is removed from the old one."""
        if self._lost is not None:
            raise self._lost

    def _send(
        self, payloads: Sequence[bytes], renew: Callable[[], None] = lambda: None, *, in_order: bool = False
    ) -> list[bool]:
        """Send copies; returns of which the new member has acknowledged theirs. With `in_order` nothing is sent behind a message that is too large."""
        now_ms = time.time_ns() // 1_000_000
        copies = [self._copy(payload, now_ms) for payload in payloads]
        limit = self._sender.max_message_bytes if in_order else 0
        count = next((index + 1 for index, copy in enumerate(copies) if 0 < limit < len(copy)), len(copies))
        try:
            results: Sequence[IsthmusError | None] = deliver(self._target, self._sender, copies[:count], renew)
        except UnconfirmedError as lost:
            results, self._lost = lost.results, lost
        refusals = [error for error in results if error is not None and error is not self._lost]
        if refusals and not self.first_refusal:
            self.first_refusal = str(refusals[0])
        return [*(error is None for error in results), *[False] * (len(copies) - count)]

    def _copy(self, payload: bytes, now_ms: int) -> bytes:
        moved = ""
        if self._keeps_keys:
            moved = moved_from(self._source.namespace_id, self._path, sequence_of(payload), _enqueued_ms(payload))
        return as_copy(payload, now_ms, moved=moved, is_dead=self._are_dead)


def as_copy(payload: bytes, now_ms: int, *, moved: str = "", is_dead: bool = False) -> bytes:
    """The message as a sender would send it, with its remaining time to live.

    Args:
        payload: as its entity delivers it.
        now_ms: wall time.
        moved: the value of `MOVED`; empty for none.
        is_dead: whether it is a dead letter, which keeps the position where it was dead-lettered and has no time to live.
    """
    sections = section.locate(payload)
    start, end = sections.header
    if end:
        header = section.decode_header(payload, (start, end))
        enqueued_ms = section.map_value(payload, sections.message_annotations, names.ENQUEUED_TIME)
        if header.ttl_ms and header.ttl_ms < _NO_TTL and isinstance(enqueued_ms, int):
            # The time to live of a scheduled message begins when it is due.
            lives_from_ms = max(enqueued_ms, _due_ms(payload))
            left_ms = None if is_dead else max(1, header.ttl_ms - max(0, now_ms - lives_from_ms))
            payload = section.encode_header(header._replace(ttl_ms=left_ms)) + payload[end:]
    parts = split(payload, HeadCache(0))
    if moved:
        # Behind everything else: the key is searched for there.
        rest = with_properties(with_properties(parts.rest, {}, [names.MOVED]), {names.MOVED: moved})
        parts = parts._replace(rest=rest)
    return sent_again(parts, is_dead=is_dead)


def _enqueued_ms(payload: bytes) -> int:
    return _time_ms(payload, names.ENQUEUED_TIME)


def _due_ms(payload: bytes) -> int:
    return _time_ms(payload, names.SCHEDULED_TIME)


def _time_ms(payload: bytes, name: str) -> int:
    """The time of an annotation, 0 if there is none; others may be unreadable."""
    value = section.map_value(payload, section.locate(payload).message_annotations, name)
    return value if isinstance(value, int) else 0
