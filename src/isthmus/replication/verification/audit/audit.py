"""An independent reading of a task's namespaces, for reconciliation.

What it is: the order in which a task's entities are browsed (messages are never locked or settled), so that the result is correct while messages
move. It collects only numbers and digests, and it uses no counter of a route. What it is not: the comparison
(`isthmus.replication.verification.reconciliation.reconcile`), or the classification of copies and of missing messages
(`isthmus.replication.verification.audit.holding`, `isthmus.replication.verification.audit.missing_copy`).

The order of reading, and why the result is correct while routes run:
    1. every member's audited subscription to its end: what entered by then is what must be accounted for;
    2. every route's source, and behind it the spools that the route reads through: what waits there;
    3. every member's audited subscription again, from where the first reading ended: what moved between 1 and 2;
    4. every route's dead-letter queue, and the entities that steps divert to: what was set aside or diverted between 2 and 4 had left the source.
    5. for what is then missing, where the target detects duplicates: the subscriptions once more, for the equal message that
       caused the copy to be dropped, and which arrived before it.
A message that entered is at each step either before a route, behind it, or set aside, and it only moves forward; so
a message that is found nowhere was lost.

Invariants:
    I1. Reading changes nothing: messages are browsed.
    I2. What enters after step 1 ended is ignored, both at its origin and as a copy.
    I3. A message that is found nowhere and that expired before the reading began counts as ended; what expired
        during the reading is left out: each namespace removes expired messages at a time that it chooses.
    I4. What the task does not replicate, by its filter or because its publisher marked it, is not expected anywhere; it is
        counted.
    I5. A copy counts only if it has the content of the original that it names, and if it is not a copy of an earlier message with the same number:
        an entity that was deleted and created again assigns its numbers again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from isthmus.clock import Clock, SystemClock
from isthmus.connectors.servicebus.head import FRAGMENT_BITS
from isthmus.connectors.system import TellsBegins
from isthmus.replication.verification.audit.audited import Audited, Selects
from isthmus.replication.verification.audit.confirmed import confirmed, entered_since
from isthmus.replication.verification.audit.detection import dropped_by_detection
from isthmus.replication.verification.audit.diverted import dropped_of_ledgers
from isthmus.replication.verification.audit.holding import holding_of, met_of
from isthmus.replication.verification.audit.joined import entered_before
from isthmus.replication.verification.audit.missing_copy import doubt, leave_out, missing_copies
from isthmus.replication.verification.audit.passage import (
    DEAD_LETTER,
    DRIFT_MS,
    LogReader,
    Passage,
    Peek,
    PeekOpener,
    SourceReader,
    SpoolsReader,
    messages,
)
from isthmus.replication.verification.audit.recorded import Recorded
from isthmus.replication.verification.audit.sibling import Siblings
from isthmus.replication.verification.audit.unkept import doubt_unkept, entered_unkept
from isthmus.replication.verification.hour.reading import HourReading
from isthmus.replication.verification.identity import Identity, Members, identify
from isthmus.replication.verification.reconciliation.reconcile import Holding, Reconciliation, reconcile
from isthmus.topology.model import Endpoint, Route

# The maximum age of a message count of RabbitMQ, with a second of margin (its `collect_statistics_interval`).
COUNTED_SECONDS = 6.0

__all__ = ["DEAD_LETTER", "Peek", "PeekOpener", "Selects", "audit"]


def audit(
    task: str,
    routes: Sequence[Route],
    subscriptions: Mapping[str, Endpoint],
    open_peek: PeekOpener,
    *,
    passages: Sequence[Passage] = (),
    on_message: Callable[[str, bytes], None] | None = None,
    detection_ms: Mapping[str, int] | None = None,
    selects: Selects | None = None,
    ordered: bool = True,
    by_session: bool = False,
    mark: str = "",
    former_marks: Sequence[str] = (),
    shared: bool | Collection[str] = False,
    ttl_ms: int | Mapping[str, int] = 0,
    clock: Clock | None = None,
    members: Members | None = None,
    logs: Mapping[str, bool] | None = None,
    log_reader: LogReader | None = None,
    spools: SpoolsReader | None = None,
    delivered: Callable[[Passage], Mapping[int, int]] | None = None,
    diverted: Callable[[Passage], Mapping[int, int]] | None = None,
    unsettled: Callable[[Route], int] | None = None,
    pause: Callable[[float], None] = time.sleep,
    by_hour: bool = False,
    enqueued: Callable[[Passage], Mapping[int, int]] | None = None,
    joined: Callable[[Passage], int] | None = None,
) -> Reconciliation:
    """Read a task's namespaces and compare them.

    Args:
        task: the task's name.
        routes: the task's routes.
        subscriptions: by alias, or by the label that the passages use, each entity that is read to its end: the one that retains all messages that
            entered an origin, and where copies have to be.
        open_peek: opens an entity for browsing.
        passages: which origin's messages have to be where; none: those of each route's source at each route's target.
        on_message: called with the member's alias and every message of the audited subscriptions.
        detection_ms: by alias, the history window of the duplicate detection of the member's topic, where it is on.
        selects: which of the messages that publishers sent are replicated; None: all.
        ordered: whether the task promises order.
        by_session: whether that is an order within each session.
        mark: the property that the task's rule sets on copies.
        former_marks: the properties that it set in the past.
        shared: whether applications consume the audited subscriptions, or which of them.
        ttl_ms: the time to live that the subscriptions give their messages; 0 for none.
        clock: to decide which messages have expired.
        members: as for `identify`.
        logs: by alias, the entities that are logs, and whether the task leaves out what was in the log before it began.
        log_reader: reads what waits at routes whose source is a log.
        spools: reads what is in the spools of routes.
        delivered: what ledgers record of the messages of a passage: sequence numbers at their origin, and when each was last moved.
        diverted: the same for messages that steps have diverted.
        unsettled: how many messages wait at a route whose queue cannot be browsed, or are with its consumer.
        pause: waits for a number of seconds when such a count is too old.
        by_hour: whether to count also by the hour in which messages were enqueued at their origin.
        enqueued: what ledgers record of that time: sequence numbers at their origin, and wall times.
        joined: when a passage began, as wall time; 0: not known. Called only where something is missing.

    Raises:
        EntityNotFoundError: an audited subscription or a route's source does not exist.
        IsthmusError: a namespace cannot be read.
    """
    clock = clock or SystemClock()
    began_ms = clock.wall_ms()
    read = partial(identify, members=members)
    marks = tuple(filter(None, (mark, *former_marks)))
    followed = passages or [
        Passage(origin=route.source.alias, member=route.target.alias, routes=(route,)) for route in routes
    ]
    kept = {each.origin for each in passages if each.is_witnessed} if passages else set(subscriptions)
    forwarded = {each.member: each.origin for each in followed if not each.routes or each.keeps_numbers}
    recorded = {each.origin for each in followed if each.by_content}
    peeks = {alias: open_peek(endpoint) for alias, endpoint in subscriptions.items()}
    audited = {
        alias: Audited(
            alias,
            endpoint.entity,
            marks,
            selects,
            is_origin=alias in kept,
            is_log=alias in (logs or {}),
            recorded=frozenset(recorded),
            is_record=alias in recorded,
            forwards=forwarded.get(alias, ""),
            is_table=endpoint.is_table,
            by_session=by_session,
        )
        for alias, endpoint in subscriptions.items()
    }
    siblings = Siblings(followed)
    hours = HourReading(audited) if by_hour else None
    seen = partial(_seen, siblings, on_message, hours)
    ends = {alias: _read_on(each, peeks[alias], read, {}, seen) for alias, each in audited.items()}
    on_time = None if hours is None else hours.add
    of_diverted = partial(read, is_diverted=True)
    sources = SourceReader(followed, open_peek, read, log_reader, spools, siblings.see, on_time, of_diverted)
    since = partial(entered_since, audited=audited)
    sources.read_waiting(began_ms, since)
    rest, met = sources.found, {pair: each.waiting | each.diverted for pair, each in sources.found.items()}
    for alias, each in audited.items():
        each.first_pass = False
        ends[alias] = _read_on(each, peeks[alias], read, ends[alias], seen)
        log: object = peeks[alias]
        if each.is_log and isinstance(log, TellsBegins):
            each.begins = log.begins()
    sources.read_set_aside()
    sources.read_diverted(since)
    for label in {each.origin for each in followed if not each.is_witnessed}:
        for each in audited.values():
            if label in each.arrivals:
                each.arrivals[label].leave_former()
    by_record = Recorded(followed, audited)
    by_record.number()
    count = partial(_counted, followed, unsettled)
    counts = count() if recorded else {}
    if by_record.misses():
        pause(COUNTED_SECONDS)
        counts = count()
        for alias, each in audited.items():
            _read_on(each, peeks[alias], read, ends[alias], seen)
        by_record.number()
    unmet = []
    for alias in (each for each, begins_late in (logs or {}).items() if begins_late and each in audited):
        late = [by_record.met(each, counts[each.pair]) for each in followed if each.by_content and each.origin == alias]
        known = met_of(alias, audited, rest).union(*late)
        if audited[alias].own and not known:
            unmet.append(
                f"whether {task} has to move what is in {alias} is not known: none of it waits, or is where it has to be"
            )
        audited[alias].begin_with(known)
    readings = {
        alias: each.reading(
            shared=shared if isinstance(shared, bool) else alias in shared,
            ttl_ms=ttl_ms if isinstance(ttl_ms, int) else ttl_ms.get(alias, 0),
            read_ms=began_ms,
        )
        for alias, each in audited.items()
    }
    ended_ms = clock.wall_ms() + DRIFT_MS
    unkept, unseen = entered_unkept(followed, audited, rest, met)
    changed = {each.pair for each in followed if each.changes}
    holdings = {
        alias: holding_of(each, audited, readings, ended_ms, unkept, changed) for alias, each in audited.items()
    }
    for alias, entered in unkept.items():
        holdings.setdefault(alias, Holding()).entered = entered
        holdings[alias].arrived[alias] = entered
    missing = missing_copies(holdings, rest)
    for pair, numbers in missing.items():
        if pair[0] not in unkept:
            rest[pair].resent |= {number for number in numbers if audited[pair[0]].is_resent(number)}
            numbers.difference_update(rest[pair].resent)
    for alias in holdings.keys() - unkept.keys():
        during_ms = (began_ms - DRIFT_MS, clock.wall_ms() + DRIFT_MS)
        leave_out(alias, holdings[alias], audited[alias], missing, during_ms)
    by_record.explain(missing, rest, counts)
    if any(missing.values()):
        for passage in (each for each in followed if joined is not None and each.is_witnessed and missing[each.pair]):
            at_pair, began_at_ms = rest[passage.pair], joined(passage) if joined is not None else 0
            at_pair.before_route |= entered_before(passage, missing[passage.pair], audited, at_pair, began_at_ms)
            missing[passage.pair] -= at_pair.before_route
        reads = {alias: partial(messages, peek, 0, read) for alias, peek in peeks.items()}
        originals = {alias: each.originals for alias, each in audited.items()}
        sought = {
            pair: numbers for pair, numbers in missing.items() if pair[0] not in unkept and pair[0] not in recorded
        }
        for pair, numbers in dropped_by_detection(sought, reads, detection_ms or {}, originals, marks).items():
            rest[pair].dropped |= numbers
            missing[pair] -= numbers
        doubt_unkept([each for each in followed if not each.is_witnessed], missing, rest, siblings.wanted)
        explained = dict.fromkeys(readings, 0)
        for passage in (each for each in followed if each.is_witnessed):
            at = rest[passage.pair], missing[passage.pair], audited[passage.origin], readings[passage.member]
            explained[passage.member] = doubt(*at, (began_ms - DRIFT_MS, ended_ms), passage, explained[passage.member])
        if delivered is not None:
            diverted_ms: dict[tuple[str, str], dict[int, int]] = {}
            for passage in followed:
                if doubtful := rest[passage.pair].consumed:
                    entered_ms = since(passage)
                    rest[passage.pair].delivered |= confirmed(doubtful, delivered(passage), entered_ms)
                    if passage.diverts and diverted is not None:
                        times = diverted(passage)
                        of_ledger = confirmed(doubtful, times, entered_ms)
                        rest[passage.pair].diverted |= of_ledger
                        diverted_ms.setdefault(passage.pair, {}).update({each: times[each] for each in of_ledger})
                    if hours is not None and enqueued is not None and not passage.is_witnessed:
                        numbers = rest[passage.pair].delivered | rest[passage.pair].diverted
                        hours.add_ledger(passage.origin, numbers, enqueued(passage))
            dropped_of_ledgers(diverted_ms, {each.pair: each.divert_detection_ms for each in followed}, rest)
    pairs = {each.pair for each in followed} | {(each.origin, each.origin) for each in followed} if passages else None
    return reconcile(
        task,
        holdings,
        rest,
        ordered=ordered,
        readings=tuple(readings.values()),
        pairs=pairs,
        unread=(*unseen, *sources.unknown, *siblings.unknown, *unmet),
        hours=None if hours is None else hours.hours_of,
    )


def _seen(
    siblings: Siblings,
    on_message: Callable[[str, bytes], None] | None,
    hours: HourReading | None,
    at: Audited,
    message: bytes,
    identity: Identity,
) -> None:
    """Called for each message that was read from an audited entity."""
    if hours is not None:
        hours.see(at, message, identity)
    siblings.see((identity.origin or at.forwards, at.alias), message, identity)
    if on_message is not None:
        on_message(at.alias, message)


def _counted(passages: Sequence[Passage], unsettled: Callable[[Route], int] | None) -> dict[tuple[str, str], int]:
    """By (origin, member), what waits at the routes of which only a count is known."""
    return {
        each.pair: unsettled(each.routes[0]) if unsettled is not None else 0 for each in passages if each.by_content
    }


def _read_on(
    audited: Audited,
    peek: Peek,
    read: Callable[[bytes], Identity],
    known: Mapping[int, int],
    seen: Callable[[Audited, bytes, Identity], None],
) -> dict[int, int]:
    """Reads what comes after `known`, which gives the next sequence number of each fragment (an ordinary entity has one)."""
    ends = dict(known)
    start = 0 if any(known) else known.get(0, 0)
    for message, identity in messages(peek, start, read):
        fragment = identity.sequence >> FRAGMENT_BITS
        if identity.sequence < known.get(fragment, 0):
            continue
        audited.take(message, identity)
        ends[fragment] = identity.sequence + 1
        seen(audited, message, identity)
    return ends
