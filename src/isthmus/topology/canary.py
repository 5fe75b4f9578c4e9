"""Canaries: heartbeat messages of a route, which no application receives.

What it is: the setting `canary`, the rules that keep canaries from applications, and the checks that these rules are possible. A canary is
sent to the topic that a route reads from, and carries the route's name in the property `isthmus-canary`. Of all subscriptions only the
route's own selects it, by a separate rule; at the target only the subscription `isthmus.TASK.canary` selects the copy. Every other
subscription of both topics has `[isthmus-canary] IS NULL` in its rules: `plan` adds it to those that the file declares, and reports a fault
for one that the file does not declare and that would get canaries. What it is not: sending and receiving (`isthmus.supervisor.watch.canary_watch`).

Invariants:
    I1. Canaries do not change which other messages are selected.
    I2. A canary is selected by its route's subscription alone, its copy by `isthmus.TASK.canary` alone.
    I3. If I2 is impossible, the file or the plan has a fault, and nothing is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from isthmus.message.name import CANARY, ORIGIN
from isthmus.rules import DictView, FilterError, RuleSyntaxError, parse_filter
from isthmus.topology.check.rule_check import check_filter
from isthmus.topology.file.document import Document
from isthmus.topology.file.duration import INFINITE_MS
from isthmus.topology.model import Federation, Route, Task
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.pattern.part.replication import check_subscription_name, replication_subscription
from isthmus.topology.state import EntityState, RuleState, SubscriptionState, TopicState
from isthmus.topology.step.order import is_frame_step

__all__ = ["MEMBER", "canary_subscription", "check_canaries", "has_canary", "narrows", "taking", "with_canary"]

MEMBER = "canary"
"""Replaces the member in the name of the subscription that receives the copies of canaries."""

RULE = "isthmus-canary"
EXCLUSION = "isthmus-no-canary"
_PROPERTY = f"[{CANARY}]"
_NONE = f"{_PROPERTY} IS NULL"
_TTL_MS = 600_000
_LOCK_MS = 30_000


def canary_subscription(task: str) -> str:
    """Name of the subscription that receives the copies of canaries at a target."""
    return replication_subscription(task, MEMBER)


def with_canary(task: Task, alias: str, entity: EntityState) -> EntityState:
    """The entity that a task wants, with the rules for canaries."""
    if not task.canary_ms or not isinstance(entity, TopicState):
        return entity
    routes = list(PATTERNS[task.pattern].routes(task))
    sources = {(route.source.alias, route.source.entity.lower()): route.name for route in routes}
    arriving = [route.name for route in routes if _is_at(route.target.alias, route.target.entity, alias, entity.name)]
    leaving = [route for route in routes if _is_at(route.source.alias, _topic_of(route), alias, entity.name)]
    if not arriving and not leaving:
        return entity
    subscriptions = [
        _with_rules(each, sources.get((alias, f"{entity.name}/Subscriptions/{each.name}".lower()), ""))
        for each in entity.subscriptions
    ]
    if arriving:
        names = ", ".join(f"'{name}'" for name in arriving)
        arrived = f"{_PROPERTY} IN ({names}) AND [{ORIGIN}] IS NOT NULL"
        subscriptions.append(
            SubscriptionState(
                name=canary_subscription(task.name),
                rules=(RuleState(RULE, arrived),),
                lock_duration_ms=_LOCK_MS,
                auto_delete_on_idle_ms=INFINITE_MS,
                requires_session=False,
                forward_to="",
                default_ttl_ms=_TTL_MS,
                dead_letters_expired=False,
            )
        )
    return replace(entity, subscriptions=tuple(subscriptions))


def _with_rules(subscription: SubscriptionState, route: str) -> SubscriptionState:
    if subscription.rules is None:
        return replace(subscription, rules=(RuleState(EXCLUSION, _NONE),))
    rules = [replace(rule, filter=f"({rule.filter}) AND {_NONE}") for rule in subscription.rules]
    if route:
        rules.append(RuleState(RULE, f"{_PROPERTY} = '{route}'"))
    return replace(subscription, rules=tuple(rules))


def has_canary(wanted: TopicState) -> bool:
    """Whether a topic gets the rules for canaries: then the rules of all its subscriptions matter."""
    return any(rule.name in (RULE, EXCLUSION) for each in wanted.subscriptions for rule in each.rules or ())


def taking(wanted: TopicState, existing: TopicState | None) -> Iterator[tuple[str, str]]:
    """Subscriptions that prevent a plan: (name, reason).

    Args:
        wanted: the topic.
        existing: the existing topic; None if there is none.
    """
    if not has_canary(wanted):
        return
    for present in existing.subscriptions if existing is not None else ():
        declared = wanted.subscription(present.name)
        own = declared is not None and declared.rules is not None and declared.rule(EXCLUSION) is not None
        if own and any(narrows(rule) for rule in present.rules or ()):
            yield present.name, "has rules that the file does not declare, which the rules for canaries would replace"
        elif (declared is None or declared.rules is None) and any(_takes(rule) for rule in present.rules or ()):
            yield present.name, "would get canaries"
    for each in wanted.subscriptions:
        if each.rules is not None and not _is_own(each) and any(_takes(rule) for rule in each.rules):
            yield each.name, "would get canaries"


def _is_own(subscription: SubscriptionState) -> bool:
    return any(rule.name == RULE for rule in subscription.rules or ())


def narrows(rule: RuleState) -> bool:
    """Whether a rule excludes other messages than canaries."""
    return "".join(rule.filter.split()) not in ("1=1", "TRUE", "".join(_NONE.split())) or bool(rule.action)


def _takes(rule: RuleState) -> bool:
    """Whether a rule selects a message that has only the canary's property. A rule without SQL is a correlation filter, which requires
    values that a canary does not have.
    """
    try:
        return parse_filter(rule.filter).matches(DictView(user={CANARY: "x"})) is True
    except RuleSyntaxError:
        return False
    except FilterError:
        return True


def check_canaries(federation: Federation, document: Document) -> None:
    """Fault canaries that an application, or another task, would receive."""
    for task in federation.tasks.values():
        if task.canary_ms:
            _check(task, federation, document)


def _check(task: Task, federation: Federation, document: Document) -> None:
    place = task.places.get("canary", task.place)
    pattern = PATTERNS[task.pattern]
    topics = {
        (alias, entity.name.lower()): entity for alias, entity in pattern.wanted(task) if isinstance(entity, TopicState)
    }
    routes = list(pattern.routes(task))
    if not routes:
        document.fault(place, f"{task.pattern} has no routes that could carry a canary", "remove canary")
        return
    for route in routes:
        for end, what in ((route.source, "source"), (route.target, "target")):
            name = _topic_of(route) if what == "source" else end.entity
            if (end.alias, name.lower()) not in topics or (what == "source" and name == end.entity):
                document.fault(
                    place,
                    f"a canary of {route.name} cannot be kept from the consumers of its {what}: {name} at {end.alias} is no topic with "
                    "subscriptions that this task declares",
                    "remove canary; canaries need topics at both ends",
                )
                return
    if any(not flow.witness.entity for flow in pattern.audit(task)):
        # Without an audit subscription, isthmus verify identifies messages by the topic's sequence numbers, and canaries use some of them.
        document.fault(place, "isthmus verify could not distinguish canaries from lost messages", "write audit: 1d")
    step = next((step for step in task.steps if is_frame_step(step)), None)
    if step is not None:
        document.fault(place, f"the step {step} would process canaries too", "remove canary, or write takes: message")
    if any(alias.lower() == MEMBER for alias in task.members):
        document.fault(
            place, f"a member has the alias {MEMBER}, which names the canary's subscription", "write another alias"
        )
    check_subscription_name(task.name, MEMBER, place, document)
    for alias, entity in pattern.wanted(task):
        wanted = with_canary(task, alias, entity) if isinstance(entity, TopicState) else entity
        for each in wanted.subscriptions if isinstance(wanted, TopicState) else ():
            for rule in each.rules or ():
                if not check_filter(rule.filter, place, document):
                    return
    touched = {(route.source.alias, _topic_of(route).lower()) for route in routes}
    touched |= {(route.target.alias, route.target.entity.lower()) for route in routes}
    for other in _reading(federation, touched):
        if other.name != task.name and not other.canary_ms:
            document.fault(
                place,
                f"task {other.name} reads a topic of this task and would copy its canaries",
                f"write canary in task {other.name} too, or remove it here",
            )


def _reading(federation: Federation, topics: Iterable[tuple[str, str]]) -> Iterator[Task]:
    touched = set(topics)
    for task in federation.tasks.values():
        for route in PATTERNS[task.pattern].routes(task):
            if (route.source.alias, _topic_of(route).lower()) in touched:
                yield task
                break


def _topic_of(route: Route) -> str:
    return route.source.entity.partition("/Subscriptions/")[0]


def _is_at(alias: str, name: str, other_alias: str, other_name: str) -> bool:
    return alias == other_alias and name.lower() == other_name.lower()
