"""Messages that were set aside, sent on.

What it is: the sending of messages that `isthmus.operations.redrive.set_aside` has chosen in a queue of `isthmus.topology.redrive`: through the
route's steps, as the route's own copies, to its target; each leaves the queue once the target has acknowledged its copy. What it is not: a
route; refused messages stay where they are. The origin of a diverted message is read by `isthmus.operations.redrive.diverted`.

Invariants:
    I1. A message leaves its queue only after its copy is acknowledged, or a step of its route has dropped it. Killed in between, it is sent
        again by the next call, with the same duplicate key.
    I2. From the parking queue each message is sent with a time to live of its own.
    I3. A message for several targets leaves its queue when all have acknowledged their copies, except targets that it has visited.
    I4. Each copy names its message (`isthmus.message.name.RESENT`), so that `verify` knows that it is late. From the parking
        queue, where each message has no provenance, it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from isthmus.amqp import section
from isthmus.entities.queue.run import RunSet
from isthmus.entities.record.amend import with_properties
from isthmus.entities.record.parse import HeadCache, split
from isthmus.errors import InvalidArgumentError, IsthmusError, LockLostError
from isthmus.message import name as names
from isthmus.operations.copy_target import Kept, Sent, TargetGoneError, Verdict
from isthmus.operations.message import entered_as
from isthmus.operations.peek import Progress
from isthmus.operations.redrive.diverted import restored
from isthmus.operations.redrive.leg import Leg, Legs
from isthmus.operations.redrive.set_aside import Choice, SetAside, whose
from isthmus.operations.removal.session_sweep import sweep_entity
from isthmus.operations.removal.sweep import Taken
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.route_spec import route_spec
from isthmus.replication.step.base import NamedStep, guarded
from isthmus.replication.step.chain.opener import open_message_steps
from isthmus.replication.step.message.message import StepMessage
from isthmus.topology.model import Federation
from isthmus.topology.redrive import Redrive
from isthmus.transport import Client

__all__ = ["Redriven", "redrive"]

_AT_ONCE = 100


@dataclass(slots=True)
class Redriven:
    """The result.

    Attributes:
        sent: acknowledged by the target, and removed from the queue.
        dropped: by a step of the route; removed from the queue.
        refused: by the target, by a step, or because they would return; they stay where they are.
        left: locked by others or removed meanwhile, or the target was lost before they were sent.
        first_refusal: the reason of the first one; empty if none was.
        failure: why nothing more was sent; empty if all was tried.
        locked_sessions: in a queue with sessions, those that another receiver has locked; their messages count as left.
    """

    sent: int = 0
    dropped: int = 0
    refused: int = 0
    left: int = 0
    first_refusal: str = ""
    failure: str = ""
    locked_sessions: list[str] = field(default_factory=list)


def redrive(
    clients: NamespaceClients,
    federation: Federation,
    each: Redrive,
    found: SetAside,
    choice: Choice,
    *,
    progress: Progress = lambda _: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Redriven:
    """Send the chosen messages.

    Args:
        clients: opens connections.
        federation: with absolute paths.
        each: the queue.
        found: by `count_queue`; its chosen messages are used up.
        choice: by which they were chosen.
        progress: called with the number of messages processed since the last call.
        is_stopped: called repeatedly; once it returns true nothing more is sent, and sent messages leave the queue.

    Raises:
        IsthmusError: a namespace cannot be reached, or refuses, and nothing was sent.
    """
    made = [(route_spec(route, federation), open_message_steps(route.options.steps)) for route in each.routes]
    client = clients.open(each.source)
    try:
        with Legs(made, found.origins if each.is_diverted else {client.namespace_id}) as legs:
            legs.of(None)  # an unreachable target is reported before anything is locked
            # For a namespace that reports no identity, a client has the name of its host.
            is_apart = each.may_be_apart and not client.peer_properties.get(names.NAMESPACE_ID)
            pass_ = _Pass(legs, _cleaned(each, choice, is_apart=is_apart), found.chosen, progress, is_stopped)
            return pass_.carry(client, each.source.entity)
    finally:
        client.close(1.0)


class _Cleaned(NamedTuple):
    """A message as its route receives it.

    Attributes:
        payload: encoded.
        origin: identity of the namespace where it entered, empty if unknown; None if all are from one.
        route: the only one to whose target it goes; empty for those of all.
    """

    payload: bytes
    origin: str | None = None
    route: str = ""


class _Pass:
    """One pass over a queue.

    Args:
        legs: the targets.
        clean: removes properties of a message first.
        chosen: sequence numbers; used up.
        progress: as for `redrive`.
        is_stopped: as for `redrive`.
    """

    def __init__(
        self,
        legs: Legs,
        clean: Callable[[bytes], _Cleaned],
        chosen: RunSet,
        progress: Progress,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._legs = legs
        self._clean = clean
        self._chosen = chosen
        self._progress = progress
        self._is_stopped = is_stopped
        self._done = Redriven()
        self._acknowledged = 0
        self._failure = ""

    def carry(self, client: Client, path: str) -> Redriven:
        """Send the chosen messages, and complete the sent ones."""
        count, done = self._chosen.count(), self._done
        try:
            completed = sweep_entity(
                client,
                path,
                self._chosen,
                self._take,
                on_locked=done.locked_sessions.append,
                is_stopped=self._is_stopped,
            )
        except IsthmusError as error:
            completed = int(error.attributes.get("completed", 0))
            note = f"; the target had acknowledged {self._acknowledged:,} copies by then" if self._acknowledged else ""
            done.failure = f"{error}{note}"
        # Messages that were acknowledged after their lock was lost are still in the queue; sent again, they have the same duplicate key.
        done.dropped = min(done.dropped, completed)
        done.sent = completed - done.dropped
        done.left = count - completed - done.refused
        done.failure = done.failure or self._failure
        return done

    def _take(self, taken: Sequence[Taken], renew: Callable[[], None]) -> list[Taken]:
        finished: list[Taken] = []
        for start in range(0, len(taken), _AT_ONCE):
            if self._failure or self._is_stopped():
                self._chosen.clear()  # the pass ends
                break
            part = taken[start : start + _AT_ONCE]
            finished += self._send(part, renew)
            self._progress(len(part))
            try:
                renew()
            except LockLostError:  # of a session: the others follow
                raise
            except IsthmusError as error:  # what the target has acknowledged still leaves its queue
                self._fail(f"the source was lost: {error}")
        return finished

    def _send(self, part: Sequence[Taken], renew: Callable[[], None]) -> list[Taken]:
        """Those of these messages that need no further sending to any target."""
        parties: dict[tuple[str | None, str], list[tuple[int, bytes]]] = {}
        refused: dict[int, str] = {}
        for index, each in enumerate(part):
            try:
                cleaned = self._clean(each.payload)
            except (IsthmusError, ValueError) as error:
                refused[index] = f"the message cannot be read: {error}"
                continue
            if cleaned.origin is not None and cleaned.origin not in self._legs:
                refused[index] = "its provenance has changed since it was peeked"
                continue
            parties.setdefault((cleaned.origin, cleaned.route), []).append((index, cleaned.payload))
        unsent: set[int] = set()
        sent: set[int] = set()
        there: dict[int, str] = {}
        for (origin, route), party in parties.items():
            legs = [] if self._failure else self._opened(origin, renew)
            if not legs:
                unsent.update(index for index, _ in party)
            for leg in legs:
                if route not in ("", leg.route):
                    continue
                for index, outcome in self._through(leg, party, renew):
                    if isinstance(outcome, Sent):
                        sent.add(index)
                    elif outcome is not None and leg.target.failure:
                        unsent.add(index)
                    elif outcome is not None:
                        (there if outcome.is_there else refused).setdefault(index, outcome.text)
        # It has reached one target and is removed: no caller waits for it any more.
        refused |= {index: text for index, text in there.items() if index not in sent}
        for text in refused.values():
            self._refuse(text)
        finished = [index for party in parties.values() for index, _ in party if index not in refused.keys() | unsent]
        self._done.dropped += sum(index not in sent for index in finished)
        return [part[index] for index in sorted(finished)]

    def _opened(self, origin: str | None, renew: Callable[[], None]) -> list[Leg]:
        """The targets of messages of a namespace; empty if one is lost."""
        try:
            return self._legs.of(origin, renew)
        except TargetGoneError as error:
            self._failure = str(error)
            return []

    def _through(
        self, leg: Leg, party: Iterable[tuple[int, bytes]], renew: Callable[[], None]
    ) -> list[tuple[int, Verdict | None]]:
        """The outcome of each message at one target; None: a step drops it."""
        found: list[tuple[int, Verdict | None]] = []
        ready: list[int] = []
        copies: list[bytes] = []
        for index, payload in party:
            made = _prepared(leg.steps, payload)
            if isinstance(made, bytes):
                ready.append(index)
                copies.append(made)
            else:
                found.append((index, made))
        verdicts = leg.target.send(copies, renew)
        self._fail(leg.target.failure)
        self._acknowledged += sum(isinstance(each, Sent) for each in verdicts)
        return [*found, *zip(ready, verdicts, strict=True)]

    def _fail(self, text: str) -> None:
        """Why nothing more is sent; empty: nothing has failed."""
        self._failure = self._failure or text

    def _refuse(self, text: str) -> None:
        self._done.refused += 1
        self._done.first_refusal = self._done.first_refusal or text


def _prepared(steps: Sequence[NamedStep], payload: bytes) -> bytes | Kept | None:
    """The message after the steps, or why they do not pass it on; None: they drop it."""
    if not steps:
        return payload
    try:
        message = StepMessage(payload)
    except (IsthmusError, ValueError) as error:
        return Kept(f"the message cannot be read: {error}")
    for step in steps:
        disposition = guarded(step, message)
        if disposition is not None:
            is_dropped = disposition.kind == "complete"
            return None if is_dropped else Kept(f"{disposition.reason}: {disposition.description}")
    return message.encoded()


def _cleaned(each: Redrive, choice: Choice, *, is_apart: bool = False) -> Callable[[bytes], _Cleaned]:
    """A function that prepares a message for the route's steps and its target; `is_apart`: each is of one route."""
    if each.is_parking:
        # Its provenance starts again: earlier hops and times do not count.
        return lambda payload: _Cleaned(_without_provenance(_without_ttl(payload)))
    entered = f"{each.route.source.alias}/{each.route.entered}"

    def cleaned(payload: bytes) -> _Cleaned:
        origin, route = None, ""
        if each.is_diverted:
            owner = whose(payload, each)
            if not owner.is_own:
                raise InvalidArgumentError("its provenance has changed since it was peeked")
            origin, route = owner.namespace, owner.route if is_apart else ""
            payload = restored(payload)
        number = entered_as(payload)
        if number > 0:
            payload = _with(payload, {names.RESENT: f"{entered}/{number}"})
        return _Cleaned(_without_ttl(payload) if choice.expired else payload, origin, route)

    return cleaned


def _without_provenance(payload: bytes) -> bytes:
    return _with(payload, {}, names.OWN_PROPERTIES)


def _with(payload: bytes, properties: Mapping[str, str], removed: Iterable[str] = ()) -> bytes:
    parts = split(payload, HeadCache(0))
    return payload[: len(payload) - len(parts.rest)] + with_properties(parts.rest, properties, removed)


def _without_ttl(payload: bytes) -> bytes:
    start, end = section.locate(payload).header
    if not end:
        return payload
    header = section.decode_header(payload, (start, end))
    return payload if header.ttl_ms is None else section.encode_header(header._replace(ttl_ms=None)) + payload[end:]
