"""Split: each message goes to the targets whose filters select it.

What it is: the pattern's settings and its transfers, one for each target (Microsoft Learn, "Message replication tasks patterns",
splitting and routing). A source topic gets a replication subscription for each target. A source queue forwards into a topic of the
task, `isthmus.TASK`, with a subscription for each target: messages for a target wait durably, and an unavailable target delays only
its own. What it is not: the contrary of a filter (`isthmus.rules.analysis.contrary`), from which `first` and `otherwise` are built.

Invariants:
    I1. With `otherwise` every message is sent to at least one target; with `first` to at most one. (Filters cannot compare properties
        with binary values or lengths of time.)
    I2. A queue whose filters might exclude messages is refused unless the file has `otherwise: drop`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from isthmus.rules import Filter
from isthmus.rules.analysis.contrary import not_true
from isthmus.rules.syntax.tree import Predicate, render
from isthmus.topology.check.rule_check import RULE_LIMIT, check_action, check_filter
from isthmus.topology.claim import CLAIM_TOPIC
from isthmus.topology.file.document import Document, Place, Values
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.model import Endpoint
from isthmus.topology.pattern.part.entity import OWN_NAME, check_own_name, read_entity
from isthmus.topology.pattern.part.mark import default_mark, mark_filter
from isthmus.topology.pattern.part.replication import MARK
from isthmus.topology.pattern.transfer.setting import ACTION, AUDIT_SETTING, COMMON_TRANSFER, SOURCE, common_fields
from isthmus.topology.pattern.transfer.transfer import Transfer, TransferPattern, TransferTask

__all__ = ["Split", "SplitTask"]

_DROP = "drop"

_TARGET = (
    Setting(
        name="to",
        kind=Kind.ALIAS,
        required=True,
        description="Alias of the target's namespace.",
        example="jfk",
    ),
    Setting(
        name="queue",
        kind=Kind.ENTITY,
        description="The queue that messages go to. Exactly one of `queue` and `topic` is written.",
        example="departures",
    ),
    Setting(name="topic", kind=Kind.ENTITY, description="The topic that messages go to.", example="departures"),
    replace(ACTION, description="SQL action on each copy that goes to this target."),
    Setting(
        name="name",
        kind=Kind.ALIAS,
        description="Name of the target in subscriptions and routes, if two targets are in one namespace. Default: the alias.",
        example="jfk-2",
    ),
)

TARGET_SPEC = Spec(
    "target",
    "One target of a split.",
    (
        *_TARGET[:3],
        Setting(
            name="filter",
            kind=Kind.SQL,
            description="SQL filter of the messages for this target. Default: all.",
            example="\"carrier = 'UA'\"",
        ),
        *_TARGET[3:],
    ),
)

OTHERWISE_SPEC = Spec("otherwise", "The target for messages that no target's filter selects.", _TARGET)

SPEC = Spec(
    "split",
    "Each message of a topic or queue goes to the targets whose filters select it. A queue is emptied: applications must "
    "not consume from it.",
    (
        SOURCE,
        Setting(
            name="topic",
            kind=Kind.ENTITY,
            description="The topic that is split. Exactly one of `topic` and `queue` is written.",
            example="flights",
        ),
        Setting(
            name="queue",
            kind=Kind.ENTITY,
            description="A queue that is split. It forwards into the topic `isthmus.TASK`, which has a subscription for each target.",
            example="departures",
        ),
        Setting(
            name="targets",
            kind=Kind.LIST,
            required=True,
            inner=TARGET_SPEC,
            description="The targets. A message goes to each whose filter selects it.",
            example="[{to: jfk, queue: departures, filter: \"origin = 'JFK'\"}]",
        ),
        Setting(
            name="first",
            kind=Kind.BOOLEAN,
            default=False,
            description="Whether a message goes only to the first target whose filter selects it.",
            example="true",
        ),
        Setting(
            name="otherwise",
            kind=Kind.MAPPING,
            choices=(_DROP,),
            inner=OTHERWISE_SPEC,
            description="A target for messages that no filter selects. Without it such a message of a topic is not copied; a "
            "queue needs it, or "
            "`otherwise: drop`, which loses such messages.",
            example="{to: jfk, queue: rest}",
        ),
        MARK,
        AUDIT_SETTING,
        *COMMON_TRANSFER,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTask(TransferTask):
    """A task of this pattern: one transfer for each target, `otherwise` last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    values: Values
    name: str
    condition: str = ""
    tree: Predicate | None = None
    place: Place


class Split(TransferPattern):
    """The pattern."""

    spec = SPEC

    def build(self, name: str, values: Values, document: Document) -> SplitTask | None:
        before = len(document.faults)
        entity = read_entity(name, values, document)
        is_queue = values.written("queue")
        if is_queue and values.written("mark"):
            document.fault(
                values.at("mark"), "mark needs topic: messages moved from a queue are no copies", "remove it"
            )
        if is_queue and _through(name).lower() == CLAIM_TOPIC:
            document.fault(
                values.place, f"the task's topic {CLAIM_TOPIC} is reserved for claims of tasks", "write another name"
            )
        targets = list(self._targets(values["targets"], document))
        otherwise = self._otherwise(values, targets, document, is_queue=is_queue)
        fields = common_fields(name, SPEC.name, values, document)
        source = values["source"]
        if len(document.faults) > before or not entity or not source or not targets:
            return None
        is_number = values.written("mark")
        mark = "" if is_queue else values["mark"] or default_mark(name, ())
        shared: dict[str, Any] = {
            "source": Endpoint(source, entity),
            "is_topic": not is_queue,
            "through": _through(name) if is_queue else "",
            "mark": mark,
            "mark_is_number": is_number,
        }
        transfers = []
        for target, condition in self._conditions(targets, otherwise, values, document):
            written = target.values
            _check_length(condition, mark, target.place, document, is_number=is_number)
            transfers.append(
                Transfer(
                    name=f"{source}.{target.name}",
                    target=Endpoint(written["to"], written["topic"] or written["queue"]),
                    to_topic=bool(written["topic"]),
                    feed=target.name,
                    filter=condition,
                    action=written["action"] or "",
                    goes_alone=values["first"] or target is otherwise,
                    **shared,
                )
            )
        all_of_them = [*targets, *([otherwise] if otherwise else [])]
        fields["places"] = {
            **values.places,
            **{f"alias {each.values['to']}": each.values.at("to") for each in all_of_them},
        }
        members = tuple(dict.fromkeys((source, *(each.target.alias for each in transfers))))
        return SplitTask(members=members, transfers=tuple(transfers), **fields)

    def _targets(self, node: Any, document: Document) -> Iterator[_Target]:
        if node is None:
            return
        names: set[str] = set()
        for item in document.listed(node, "targets", SPEC.get("targets").example):  # type: ignore[union-attr]
            target = self._target(document.settings(item, TARGET_SPEC, "a target"), document)
            if target.name.lower() in names:
                document.fault(
                    target.place,
                    f"two targets have the name {target.name}",
                    f"write name: {target.name}-2 in one of them",
                )
            names.add(target.name.lower())
            yield target

    @staticmethod
    def _target(values: Values, document: Document) -> _Target:
        if bool(values.written("topic")) == bool(values.written("queue")):
            both = "both topic and queue" if values.written("topic") else "neither topic nor queue"
            document.fault(values.place, f"a target has {both}", "write queue: NAME, or topic: NAME")
        for setting in ("topic", "queue"):
            check_own_name(values[setting] or "", values.at(setting), document)
        condition: str = values["filter"] or ""
        tree = None
        if condition and check_filter(condition, values.at("filter"), document):
            tree = Filter(condition).tree
        if values["action"]:
            check_action(values["action"], values.at("action"), document)
        name = values["name"] or values["to"] or ""
        return _Target(values=values, name=name, condition=condition, tree=tree, place=values.at("filter"))

    def _otherwise(
        self, values: Values, targets: list[_Target], document: Document, *, is_queue: bool
    ) -> _Target | None:
        node = values["otherwise"]
        takes_all = any(not each.condition for each in targets)
        if node is None:
            if is_queue and targets and not takes_all:
                document.fault(
                    values.place,
                    "a message of the queue that no target's filter selects would be lost",
                    "write otherwise: {to: ALIAS, queue: NAME}, or otherwise: drop if it may be",
                )
            return None
        if document.text(node) == _DROP:
            return None
        if takes_all:
            document.fault(
                values.at("otherwise"), "a target without filter gets every message: nothing is left", "remove it"
            )
        target = self._target(document.settings(node, OTHERWISE_SPEC, "otherwise"), document)
        if target.name.lower() in {each.name.lower() for each in targets}:
            return replace(target, name="otherwise")
        return target

    @staticmethod
    def _conditions(
        targets: list[_Target], otherwise: _Target | None, values: Values, document: Document
    ) -> Iterator[tuple[_Target, str]]:
        """Each target with the condition of its messages."""
        earlier: list[str] = []
        is_first = values["first"]
        for target in targets:
            if is_first and earlier == [""]:
                document.fault(
                    target.place, "a target before it gets every message", "write the target without filter last"
                )
                return
            own = [f"({target.condition})"] if target.condition else []
            yield target, " AND ".join((*own, *earlier)) if is_first and earlier else target.condition
            if not is_first and otherwise is None:
                continue
            contrary = not_true(target.tree) if target.tree is not None else None
            if contrary is not None:
                earlier.append(f"({render(contrary)})")
            elif target.condition:
                document.fault(
                    target.place,
                    f"{'first' if is_first else 'otherwise'} needs the contrary of this filter, which cannot be written",
                    "compare one property with constants of one type; IN, LIKE, IS NULL, EXISTS, AND, OR and NOT can be used",
                )
            else:
                earlier = [""]
        if otherwise is not None:
            yield otherwise, " AND ".join(earlier)


def _through(task: str) -> str:
    """The topic that a source queue forwards into."""
    return f"{OWN_NAME}{task}"


def _check_length(condition: str, mark: str, place: Place, document: Document, *, is_number: bool) -> None:
    rule = mark_filter(mark, condition, is_number=is_number) if mark else condition
    if len(rule) > RULE_LIMIT:
        document.fault(
            place,
            f"the rule for this target, joined with the contrary of the others, has {len(rule)} characters",
            f"write shorter filters, so that it has at most {RULE_LIMIT}, or split in two tasks",
        )
