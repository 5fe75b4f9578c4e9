"""Chain: queues and subscriptions of one namespace forward to one another.

What it is: the pattern's settings, its checks and the entities that it wants (Microsoft Learn, "Chaining Service Bus entities
with autoforwarding"): entry queues of partners that can be suspended one by one, mailbox queues that drain subscriptions of a busy
topic, several entries into one queue. The namespace itself moves the messages: the task has no routes, and needs no run. What
it is not: the count of hops, over all tasks of a file (`isthmus.topology.graph.forwarding`).

Invariants:
    I1. Only links that the task declares are changed; `off` ends one. The forwarding of an entity at a chain's end is
        not changed.
    I2. A queue that others forward to is never suspended for sending: messages forwarded to it would be dead-lettered before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from isthmus.topology.check.rule_check import check_filter
from isthmus.topology.file.document import Document, Place, Values
from isthmus.topology.file.setting import Kind, Setting, SettingError, Spec
from isthmus.topology.model import Endpoint, Federation, Flow, NamespaceRef, Route, Task
from isthmus.topology.pattern.part.subscription import FILTER_RULE
from isthmus.topology.state import EntityState, QueueState, RuleState, SubscriptionState, TopicState

__all__ = ["Chain", "ChainTask", "Link"]

_SUBSCRIPTION = "/subscriptions/"
_STATUS = {"no": "Active", "send": "SendDisabled", "receive": "ReceiveDisabled"}

_LINK = Spec(
    "link",
    "The forwarding target of an entity.",
    (
        Setting(name="to", kind=Kind.TEXT, required=True, description="The queue or topic.", example="boards"),
        Setting(
            name="filter",
            kind=Kind.SQL,
            description="SQL filter of a subscription's only rule. Without it the rules are not changed.",
            example="\"carrier = 'UA'\"",
        ),
        Setting(
            name="kind",
            kind=Kind.CHOICE,
            choices=("queue", "topic"),
            default="queue",
            description="The kind of the target, if no subscription of it is in the chain.",
            example="topic",
        ),
    ),
)
_ENTITY = Setting(name="forward", kind=Kind.ENTITY, description="", example="{inbox: orders}")
_NAME = Setting(
    name="forward", kind=Kind.SUBSCRIPTION, description="", example="{flights/Subscriptions/boards: boards}"
)

SPEC = Spec(
    "chain",
    "Queues and subscriptions of a namespace forward to others in it: entry queues for each partner, mailbox queues that drain "
    "subscriptions. The namespaces forward by themselves after `isthmus apply`; nothing has to run. A message is forwarded 4 times "
    "at most, checked over all tasks of the file.",
    (
        Setting(
            name="members",
            kind=Kind.ALIASES,
            required=True,
            minimum=1,
            description="Aliases of one or more namespaces; each gets the same chain.",
            example="[ewr]",
        ),
        Setting(
            name="forward",
            kind=Kind.MAPPING,
            required=True,
            description="The entities that forward their messages (ForwardTo): a queue, or `TOPIC/Subscriptions/NAME`, and "
            "the queue or topic "
            "that they are forwarded to. `{to: TARGET, filter: SQL}` selects the messages of a subscription, "
            "`{to: TARGET, kind: topic}` declares "
            "that the target is a topic; `off` ends forwarding. Missing entities are created, as a topic if that is "
            "declared or a subscription of it is named, else as a queue. No application can "
            "receive from an entity that forwards, and an entity that requires sessions cannot forward.",
            example="{inbox: flights, flights/Subscriptions/boards: boards}",
        ),
        Setting(
            name="dead_letters",
            kind=Kind.MAPPING,
            description="The same for dead letters (ForwardDeadLetteredMessagesTo).",
            example="{boards: parked}",
        ),
        Setting(
            name="suspended",
            kind=Kind.MAPPING,
            description="Queues of the chain to suspend: `send` refuses new messages at an entry queue while its existing messages "
            "are forwarded; `receive` keeps messages in a queue at an end until it is resumed. If the setting is written, "
            "every other queue at an end of the chain is active (`suspended: {}` resumes all); without it their status is "
            "not changed.",
            example="{inbox: send}",
        ),
    ),
)


class Link(NamedTuple):
    """One entity and its forwarding target.

    Attributes:
        entity: the queue, or the topic of the subscription.
        subscription: its name; empty for a queue.
        target: queue or topic; empty if forwarding has to end.
        filter: filter of the subscription's only rule; empty: not changed.
        to_topic: whether the target is declared to be a topic.
    """

    entity: str
    subscription: str
    target: str
    filter: str = ""
    to_topic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTask(Task):
    """A task of this pattern.

    Attributes:
        links: forwarding of messages.
        dead_letters: forwarding of dead letters.
        suspended: by queue `send` or `receive`; None if their status is not changed.
    """

    links: tuple[Link, ...]
    dead_letters: tuple[Link, ...] = ()
    suspended: tuple[tuple[str, str], ...] | None = None

    @property
    def topics(self) -> dict[str, str]:
        """Topics of the chain: lower-case name to the name as first written."""
        links = (*self.links, *self.dead_letters)
        named = [link.entity for link in links if link.subscription]
        return _spelt([*named, *(link.target for link in links if link.to_topic)])

    @property
    def queues(self) -> dict[str, str]:
        """Queues of the chain, likewise."""
        topics = self.topics
        names = (name for link in (*self.links, *self.dead_letters) for name in (link.entity, link.target))
        return _spelt(name for name in names if name and name.lower() not in topics)

    @property
    def entered(self) -> frozenset[str]:
        """Lower-case names of entities that others forward to."""
        return frozenset(link.target.lower() for link in (*self.links, *self.dead_letters))

    @property
    def leaving(self) -> frozenset[str]:
        """Lower-case names of queues that forward."""
        return frozenset(link.entity.lower() for link in self.links if link.target and not link.subscription)


def _spelt(names: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(name.lower(), name)
    return found


class Chain:
    """The pattern."""

    spec = SPEC

    def build(self, name: str, values: Values, document: Document) -> ChainTask | None:
        links = self._links(values, "forward", document)
        dead_letters = self._links(values, "dead_letters", document)
        if not values["members"] or not links:
            if document.is_bare(values["forward"]):
                document.fault(
                    values.at("forward"), f"task {name} forwards nothing", f"write forward: {_ENTITY.example}"
                )
            return None
        task = ChainTask(
            name=name,
            pattern=SPEC.name,
            members=tuple(dict.fromkeys(alias for alias, _ in values["members"])),
            place=values.place,
            places=values.places,
            links=links,
            dead_letters=dead_letters,
        )
        return self._with_status(task, values, document)

    def _links(self, values: Values, setting: str, document: Document) -> tuple[Link, ...]:
        found: dict[tuple[str, str], Link] = {}
        for key, value in document.pairs(values[setting], setting).values():
            place = document.place(key)
            try:
                entity, subscription = self._source(document.scalar(_ENTITY, key))
                mapped = not isinstance(value.value, str)
                inner = document.settings(value, _LINK, f"{setting} of {key.value}") if mapped else None
                if inner is not None and not inner["to"]:
                    continue
                target = inner["to"] if inner else document.scalar(_ENTITY, value)
                target = "" if target.lower() == "off" else _ENTITY.parse(target)
            except SettingError as wrong:
                document.fault(place, wrong.message.replace("forward", setting, 1), wrong.hint)
                continue
            text = (inner["filter"] if inner else "") or ""
            if inner and text:
                check_filter(text, inner.at("filter"), document)
                if not subscription or setting != "forward":
                    what = f"{setting} of {entity}" if subscription else f"queue {entity}"
                    document.fault(inner.at("filter"), f"{what} cannot select messages", "remove filter")
            for named in (entity, target):
                if named.lower().startswith("isthmus."):
                    document.fault(place, "names that begin with 'isthmus.' are isthmus's own", "write another name")
            if (entity.lower(), subscription.lower()) in found:
                document.fault(place, f"{key.value} appears twice in {setting}", "remove one")
            found[entity.lower(), subscription.lower()] = Link(
                entity, subscription, target, text, bool(inner and target and inner["kind"] == "topic")
            )
        return tuple(found.values())

    @staticmethod
    def _source(text: str) -> tuple[str, str]:
        at = text.lower().find(_SUBSCRIPTION)
        if at < 0:
            return _ENTITY.parse(text), ""
        return _ENTITY.parse(text[:at]), _NAME.parse(text[at + len(_SUBSCRIPTION) :])

    @staticmethod
    def _with_status(task: ChainTask, values: Values, document: Document) -> ChainTask:
        if not values.written("suspended"):
            return task
        found: dict[str, str] = {}
        choice = Setting(name="suspended", kind=Kind.CHOICE, choices=("send", "receive"), description="")
        for key, value in document.pairs(values["suspended"], "suspended").values():
            place, queue = document.place(key), str(key.value)
            try:
                end = choice.parse(document.scalar(choice, value))
            except SettingError as wrong:
                document.fault(document.place(value), wrong.message, wrong.hint)
                continue
            if queue.lower() not in task.queues:
                document.fault(place, f"queue {queue} is not in this chain", "write a queue of forward")
            elif end == "send" and queue.lower() in task.entered:
                document.fault(
                    place,
                    f"others forward to {queue}: messages forwarded to it would be dead-lettered",
                    f"write {queue}: receive, or suspend the queues before it",
                )
            elif end == "receive" and queue.lower() in task.leaving:
                document.fault(
                    place, f"no application can receive from {queue}, which forwards", f"write {queue}: send"
                )
            found[queue.lower()] = end
        return replace(task, suspended=tuple(found.items()))

    def named(self, task: ChainTask, namespaces: Mapping[str, NamespaceRef]) -> ChainTask:
        return task

    def check(self, task: ChainTask, federation: Federation, document: Document) -> None:
        """Only checks within the task: contradictions between tasks and the count of hops are found over the whole file."""
        for links, setting in ((task.links, "forward"), (task.dead_letters, "dead_letters")):
            for link in links:
                if not link.subscription and link.entity.lower() in task.topics:
                    place: Place = task.places.get(setting, task.place)
                    document.fault(
                        place,
                        f"{link.entity} is a topic here and forwards nothing itself",
                        f"write {link.entity}/Subscriptions/NAME",
                    )

    def wanted(self, task: ChainTask) -> Iterator[tuple[str, EntityState]]:
        entities: list[EntityState] = [*self._queues(task), *self._topics(task)]
        for alias in task.members:
            for entity in entities:
                yield alias, entity

    @staticmethod
    def _queues(task: ChainTask) -> Iterator[QueueState]:
        to = {link.entity.lower(): link.target for link in task.links if not link.subscription}
        dead = {link.entity.lower(): link.target for link in task.dead_letters if not link.subscription}
        suspended = dict(task.suspended or ())
        for key, name in task.queues.items():
            at_an_end = key not in task.entered or key not in task.leaving
            yield QueueState(
                name=name,
                forward_to=to.get(key),
                forward_dead_letters_to=dead.get(key),
                status=_STATUS[suspended.get(key, "no")] if task.suspended is not None and at_an_end else None,
            )

    @staticmethod
    def _topics(task: ChainTask) -> Iterator[TopicState]:
        for key, name in task.topics.items():
            kept: dict[str, dict[str, str]] = {}
            names: dict[str, str] = {}
            rules: dict[str, tuple[RuleState, ...]] = {}
            for links, field in ((task.links, "forward_to"), (task.dead_letters, "forward_dead_letters_to")):
                for link in links:
                    if link.entity.lower() != key or not link.subscription:
                        continue
                    folded = link.subscription.lower()
                    names.setdefault(folded, link.subscription)
                    kept.setdefault(folded, {})[field] = link.target
                    if link.filter:
                        rules[folded] = (RuleState(FILTER_RULE, link.filter),)
            yield TopicState(
                name=name,
                subscriptions=tuple(
                    SubscriptionState(
                        name=names[folded],
                        rules=rules.get(folded),
                        forward_to=fields.get("forward_to"),
                        forward_dead_letters_to=fields.get("forward_dead_letters_to"),
                    )
                    for folded, fields in kept.items()
                ),
            )

    def routes(self, task: ChainTask) -> Iterator[Route]:
        """No routes: the namespace moves the messages."""
        yield from ()

    def audit(self, task: ChainTask) -> Iterator[Flow]:
        """From each entry, which cannot be read, to each end that its messages reach."""
        starts = [name for name in (*task.queues.values(), *task.topics.values()) if name.lower() not in task.entered]
        for alias in task.members:
            for start in starts:
                for end, conditions in _ends(task, start.lower()):
                    yield Flow(
                        origin=Endpoint(alias, start),
                        witness=Endpoint(alias, ""),
                        target=Endpoint(alias, task.queues.get(end) or task.topics[end]),
                        routes=(),
                        filter=" AND ".join(f"({each})" for each in conditions),
                    )


def _ends(
    task: ChainTask, name: str, conditions: tuple[str, ...] = (), before: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The last entities that messages from one entity reach, each with the filters on the path."""
    for link in task.links:
        target = link.target.lower()
        if link.entity.lower() != name or not target or target in before:
            continue
        passed = (*conditions, link.filter) if link.filter else conditions
        if any(each.entity.lower() == target and each.target for each in task.links):
            yield from _ends(task, target, passed, (*before, name))
        else:
            yield target, passed
