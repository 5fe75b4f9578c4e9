"""The queues with set-aside messages of a federation, and the target of each for a redrive.

What it is: a pure mapping from tasks to queues that `isthmus redrive` empties. Messages that a route could not deliver are in the
dead-letter queue of its source, with the mark of the task. Sent to the source again, they would reach every other subscription a second
time, and no route. So they are sent to the route's target, as the copies that the route would have made; so are messages that a step has
diverted. Messages that spillover has parked are sent to the member's own queue or topic again, with the mark, so that they are parked again
and not spilled if they fail once more. What it is not: the sending (`isthmus.operations.redrive.redrive`).

Invariants:
    I1. Each route has its source's queue here, and one that reads a mailbox also that of the subscription before it; no queue is here twice.
        A queue of diverted messages is here once for each of their entry points.
    I2. Every message sent from a queue has an origin with a sequence number that no other message has, so that a target that detects
        duplicates by origin accepts it once, however often it is sent.
    I3. If copies are identified by origin or MessageId, one diverted message may belong to all routes of its task that divert messages of one
        entry point there: it is sent to the targets of all of them, and leaves the queue when all have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from isthmus.errors import InvalidArgumentError
from isthmus.message import name as names
from isthmus.message.copy_policy import CopyPolicy
from isthmus.topology.model import Endpoint, Federation, Route, RouteOptions
from isthmus.topology.pattern.spillover import SpilloverTask
from isthmus.topology.route import routes
from isthmus.topology.step import StepDeclaration
from isthmus.topology.step.divert import DivertTo
from isthmus.topology.step.order import SHUFFLING, is_frame_step

__all__ = ["DEAD_LETTER_SUFFIX", "Redrive", "redrives"]

DEAD_LETTER_SUFFIX = "/$DeadLetterQueue"
_DEAD_LETTER_PROPERTIES = (names.DEAD_LETTER_REASON, names.DEAD_LETTER_DESCRIPTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """One queue of set-aside messages.

    Attributes:
        source: the queue.
        route: how its messages are sent: to the route's target, as copies of messages of the route's source.
        is_parking: whether it is spillover's parking queue, from which each message starts from the beginning.
        is_diverted: whether steps of the route have diverted its messages there.
        others: further routes to whose targets each message is sent.
        may_be_apart: whether each of these routes may have left its own message, if the queue's namespace does not identify copies by
            origin: that is sent to the target of this route alone.
        known: names of all routes that divert messages there.
        can_look: whether its messages can be counted.
        hindrance: the reason why `isthmus redrive` cannot send its messages; empty if it can.
    """

    source: Endpoint
    route: Route
    is_parking: bool = False
    is_diverted: bool = False
    others: tuple[Route, ...] = ()
    may_be_apart: bool = False
    known: frozenset[str] = frozenset()
    can_look: bool = True
    hindrance: str = ""

    @property
    def routes(self) -> tuple[Route, ...]:
        """All routes to whose targets each message is sent."""
        return (self.route, *self.others)


def redrives(
    federation: Federation, tasks: Sequence[str] = (), *, parked: bool = False, diverted: bool = False
) -> list[Redrive]:
    """The queues of some tasks, or of all; in the file's order.

    Args:
        federation: the federation.
        tasks: names; empty: all.
        parked: the parking queues of spillover instead of the dead-letter queues of routes.
        diverted: the entities that steps divert to instead.

    Raises:
        InvalidArgumentError: there is no such task, or a named one has nothing to redrive.
    """
    for name in tasks:
        if name not in federation.tasks:
            raise InvalidArgumentError(f"no task {name} in {federation.file}: {', '.join(federation.tasks)}")
    found: list[Redrive] = []
    for name in dict.fromkeys(tasks or federation.tasks):
        of = _diverted if diverted else _parked if parked else _set_aside
        made = list(of(federation, name))
        if not made and tasks:
            raise InvalidArgumentError(_nothing(federation, name, parked=parked, diverted=diverted))
        found += made
    return found


def _nothing(federation: Federation, name: str, *, parked: bool, diverted: bool) -> str:
    pattern = federation.tasks[name].pattern
    if diverted:
        return f"task {name} has no step with on_failure: divert"
    if parked:
        return f"task {name} has the pattern {pattern}; only tasks of the pattern spillover have a parking queue"
    if isinstance(federation.tasks[name], SpilloverTask):
        return f"task {name} parks what its routes set aside; write --parked to send it to its queue again"
    return f"task {name} has the pattern {pattern}, which has no routes; the namespace itself moves its messages"


def _set_aside(federation: Federation, task: str) -> Iterator[Redrive]:
    if isinstance(federation.tasks[task], SpilloverTask):
        return  # the subscriptions of its routes forward their dead letters to the parking queue
    for route in routes(federation, task):
        # Messages that a mailbox did not accept, because it was full or disabled, are in the dead-letter queue of the subscription before it.
        entities = [each + DEAD_LETTER_SUFFIX for each in (route.source.entity, route.options.feed) if each]
        sources = [replace(route.source, entity=each) for each in entities]
        if route.target.is_table:
            hindrance = (
                f"route {route.name} ends in a table: isthmus resubmit sends its dead letters to their queue again, or to their topic and so to all "
                "of its subscriptions"
            )
            yield from (Redrive(source=source, route=route, hindrance=hindrance) for source in sources)
            continue
        if federation.namespaces[route.source.alias].is_log:
            log = route.options.log.dead_letters
            where = f"the records that it set aside are in {log}" if log else "it sets no record aside"
            hindrance = f"route {route.name} reads a log: {where}"
            yield Redrive(source=Endpoint(route.source.alias, log), route=route, hindrance=hindrance)
            continue
        if federation.namespaces[route.source.alias].is_plain:
            where = route.options.plain.dead_letters or f"where {route.source.alias} puts rejected messages"
            hindrance = f"route {route.name} reads {route.source}: set-aside messages are {where}"
            yield Redrive(source=route.source, route=route, hindrance=hindrance)
            continue
        policy = route.options.policy
        policy = replace(policy, removed=tuple(dict.fromkeys((*policy.removed, *_DEAD_LETTER_PROPERTIES))))
        sent = replace(route, options=replace(route.options, policy=policy))
        yield from (Redrive(source=source, route=sent, hindrance=_hindrance(route)) for source in sources)


def _diverted(federation: Federation, task: str) -> Iterator[Redrive]:
    """The messages that the steps of a task have diverted, by entity and by entry point."""
    found: dict[tuple[str, Endpoint, str], list[Route]] = {}
    written: dict[str, DivertTo] = {}
    for route in routes(federation, task):
        for name, divert in {each.name.lower(): each for each in route.options.diverts}.items():
            written.setdefault(name, divert)
            # Without detection each route has left its own message there.
            own = route.name if route.options.duplicates == "allow" else ""
            found.setdefault((name, Endpoint(route.source.alias, route.entered), own), []).append(route)
    known = {
        name: frozenset(
            each.name for each in routes(federation) if name in {divert.name.lower() for divert in each.options.diverts}
        )
        for name in written
    }
    for (name, _, _), (first, *others) in found.items():
        divert = written[name]
        can_look = federation.namespaces[divert.alias].is_service_bus and not divert.is_topic
        tables = [each for each in (first, *others) if each.target.is_table]
        hindrance = next(filter(None, map(_hindrance, (first, *others))), "")
        if not can_look:
            hindrance = f"steps divert to {divert.name}, which redrive does not read: it is no queue of Service Bus"
        elif tables:
            hindrance = f"route {tables[0].name} ends in a table, which only a run writes"
        yield Redrive(
            source=Endpoint(divert.alias, divert.entity),
            route=first,
            is_diverted=True,
            others=tuple(others),
            may_be_apart=first.options.duplicates == "auto",
            known=known[name],
            can_look=can_look,
            hindrance=hindrance,
        )


def _hindrance(route: Route) -> str:
    """DataFrame steps, and steps that process several messages, run in Spark; a message must not bypass them."""
    for text in route.options.steps:
        step = StepDeclaration.from_text(text)
        if is_frame_step(step) or step.kind in SHUFFLING:
            return f"route {route.name} has the step {step}, which only a run carries out"
    return ""


def _parked(federation: Federation, name: str) -> Iterator[Redrive]:
    task = federation.tasks[name]
    if not isinstance(task, SpilloverTask):
        return
    for alias in task.members:
        source = Endpoint(alias, task.parking)
        yield Redrive(
            source=source,
            route=Route(
                name=f"{name}.{alias}.parked",
                task=name,
                pattern=task.pattern,
                source=source,
                targets=(Endpoint(alias, task.entity),),
                options=RouteOptions(
                    mark=task.mark,
                    mark_is_number=True,
                    # Without detection by origin, a queue that detects by MessageId would drop messages that failed there before.
                    duplicates="origin",
                    policy=CopyPolicy(keeps_dead_letter=True),
                ),
            ),
            is_parking=True,
        )
