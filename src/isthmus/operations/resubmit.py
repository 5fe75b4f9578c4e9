"""Dead letters sent again.

What it is: messages of a dead-letter queue are sent to the queue or topic in which they were dead-lettered, or elsewhere, changed by a SQL
action if one is given, without dead-letter reason and description. What it is not: exactly once.

Invariants:
    I1. A message leaves the dead-letter queue only after its copy is acknowledged. After a kill in between, both exist; also
        if the lock was lost in between, and then the message counts as left.
    I2. A message that the target refuses stays where it is; the others continue.
    I3. A copy of a dead letter of a replication subscription names the number under which it had entered (`repl-resent`), so that
        `isthmus verify` does not count it as lost.
    I4. The caller has checked with `operations.detection` whether the copies may keep their MessageIds.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.entities.queue.run import RunSet
from isthmus.entities.record.amend import with_message_id, with_properties
from isthmus.entities.record.record import Parts
from isthmus.errors import IsthmusError
from isthmus.message.name import ORIGIN, RESENT
from isthmus.operations.deliver import UnconfirmedError, deliver
from isthmus.operations.message import entered_as, sent_again
from isthmus.operations.peek import Progress
from isthmus.operations.removal.sweep import Taken, sweep
from isthmus.rules import FilterError
from isthmus.topology.redrive import DEAD_LETTER_SUFFIX
from isthmus.transport import Client, Sender

__all__ = ["DEAD_LETTER_SUFFIX", "Resubmission", "origin_of", "resubmit"]

_AT_ONCE = 100
# Names with this beginning are those of routes' sources only (docs/reference/federation-file.md).
_REPLICATION = "/subscriptions/isthmus."


class Resubmission(NamedTuple):
    """The result.

    Attributes:
        moved: acknowledged by the target, and removed from the dead-letter queue as the namespace has confirmed.
        refused: by the target, or by the action; they stay where they are.
        left: locked by others, removed meanwhile, or sent, but without the lock needed to remove it.
        first_refusal: the reason of the first one; empty if none was.
    """

    moved: int
    refused: int
    left: int
    first_refusal: str


def origin_of(path: str) -> str:
    """The queue or topic to which the dead letters of an entity return."""
    entity = path.removesuffix(DEAD_LETTER_SUFFIX)
    at = entity.lower().find("/subscriptions/")
    return entity if at < 0 else entity[:at]


def resubmit(
    client: Client,
    source: str,
    destination: str,
    wanted: RunSet,
    change: Callable[[bytes], Parts],
    *,
    new_message_ids: bool = False,
    progress: Progress = lambda _: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Resubmission:
    """Move dead letters.

    Args:
        client: connected, authorised for both.
        source: path of the dead-letter queue.
        destination: queue or topic.
        wanted: sequence numbers; used up.
        change: applied to each (`message.make_change`).
        new_message_ids: whether copies get MessageIds of their own.
        progress: called with the number of messages processed since the last call.
        is_stopped: called repeatedly; once it returns true nothing more is sent, and sent messages leave the queue.

    Raises:
        IsthmusError: the namespace is unreachable; see I1 for the messages that exist then. If only the target is, the messages that it has acknowledged are removed. A note
            says how many messages were sent and removed.
    """
    count = wanted.count()
    sender = Sender(client, destination).wait_ready()
    refusals: list[str] = []
    lost: list[IsthmusError] = []
    is_replicated = _REPLICATION in source.lower() and destination.lower() == origin_of(source).lower()

    def take(messages: Sequence[Taken], renew: Callable[[], None]) -> list[Taken]:
        done: list[Taken] = []
        for start in range(0, len(messages), _AT_ONCE):
            if is_stopped():
                wanted.clear()  # the pass ends
                break
            ready: list[Taken] = []
            copies: list[bytes] = []
            for each in messages[start : start + _AT_ONCE]:
                try:
                    parts = change(each.payload)
                except FilterError as error:
                    refusals.append(f"the action failed: {error}")
                    continue
                except CodecError as error:
                    refusals.append(f"the action uses a part of the message that cannot be read: {error}")
                    continue
                if is_replicated and not _is_copy(parts.rest):
                    before = {RESENT: str(entered_as(each.payload))}
                    parts = parts._replace(rest=with_properties(parts.rest, before))
                if new_message_ids:
                    parts = with_message_id(parts, uuid.uuid4().hex)
                ready.append(each)
                copies.append(sent_again(parts, alive=True))
            try:
                results: Sequence[IsthmusError | None] = deliver(client, sender, copies, renew)
            except UnconfirmedError as error:
                results = error.results
                lost.append(error)
            for each, refusal in zip(ready, results, strict=True):
                if refusal is None:
                    done.append(each)
                elif refusal not in lost:
                    refusals.append(str(refusal))
            progress(len(messages[start : start + _AT_ONCE]))
            if not lost:
                try:
                    renew()
                except IsthmusError as error:
                    lost.append(error)
            if lost:
                wanted.clear()  # the pass ends, once the acknowledged messages are removed
                break
        return done

    try:
        moved = sweep(client, source, wanted, take, is_stopped=is_stopped)
        for each in lost:
            each.attributes["completed"] = moved
            raise each
    except IsthmusError as error:
        error.add_note(
            f"{error.attributes.get('completed', 0)} of {count} messages were sent and removed before, as far as the namespace has answered"
        )
        raise
    sender.close()
    return Resubmission(moved, len(refusals), count - moved - len(refusals), refusals[0] if refusals else "")


def _is_copy(rest: bytes) -> bool:
    """Whether a message, from its properties on, arrived from another namespace; a body may contain that name too."""
    name = ORIGIN.encode()
    if name not in rest:
        return False
    key_end = bytes((len(name),)) + name  # of a text, whatever the width of its length
    with suppress(CodecError):
        items = section.map_items(rest, section.locate(rest).application_properties)
        return any(rest[key:value].endswith(key_end) for key, value, _ in items)
    return False
