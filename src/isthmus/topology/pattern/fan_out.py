"""Fan-out: messages of one hub reach many members, over a tree in which each message crosses a long link once.

What it is: the pattern's settings and its transfers, one for each edge of the tree (Microsoft Learn, "Message replication tasks
patterns", latency optimisation). A member with members of its own passes on the messages that it gets and those that are published at
it. What it is not: a mesh (`all_active`); nothing is copied up the tree.

Invariants:
    I1. A tree of N members gives N routes, and each message passes each edge at most once: every edge has its own mark.
    I2. The distance of a member from the hub is within the hop budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from isthmus.message.provenance import HOP_BUDGET
from isthmus.topology.check.rule_check import check_action
from isthmus.topology.file.document import Document, Place, Values
from isthmus.topology.file.setting import Kind, Setting, SettingError, Spec
from isthmus.topology.model import Endpoint, Federation, Flow, NamespaceRef
from isthmus.topology.pattern.part.entity import check_own_name
from isthmus.topology.pattern.part.mark import default_mark
from isthmus.topology.pattern.part.replication import FILTER, MARK, check_task_filter
from isthmus.topology.pattern.part.subscription import SUBSCRIPTIONS, read_subscriptions
from isthmus.topology.pattern.transfer.setting import ACTION, AUDIT_SETTING, COMMON_TRANSFER, common_fields
from isthmus.topology.pattern.transfer.transfer import Transfer, TransferPattern, TransferTask, addresses_of, flow

__all__ = ["FanOut", "FanOutTask"]

_ALIAS = Setting(name="members", kind=Kind.ALIAS, description="Alias of a member.", example="jfk")

SPEC = Spec(
    "fan-out",
    "Messages published at a hub reach every member; a member can be the hub of further members, so that a message crosses a long "
    "link once and is distributed after it. Nothing is copied up the tree.",
    (
        Setting(
            name="topic",
            kind=Kind.ENTITY,
            required=True,
            description="The topic, of the same name at the hub and at every member.",
            example="flights",
        ),
        Setting(
            name="hub",
            kind=Kind.ALIAS,
            required=True,
            description="Alias of the namespace where publishers send.",
            example="ewr",
        ),
        Setting(
            name="members",
            kind=Kind.TREE,
            required=True,
            description="Aliases that the hub sends to: a list, or a mapping of each alias to its own members, in the same form "
            "nested up to eight deep. `{jfk: [lga, sfo], ord: []}`: the hub sends to jfk and ord, and jfk to lga and sfo.",
            example="{jfk: [lga, sfo], ord: []}",
        ),
        replace(SUBSCRIPTIONS, description=SUBSCRIPTIONS.description.replace("With `topic`: ordinary", "Ordinary")),
        AUDIT_SETTING,
        replace(
            FILTER,
            description="SQL filter: only messages that it selects are copied, at the hub and at every member that copies "
            "further. It is joined "
            "with the rule on the mark.",
        ),
        replace(ACTION, description="SQL action on each copy, at every edge of the tree."),
        Setting(
            name=MARK.name,
            kind=Kind.TEXT,
            description="",
            available=False,
            refusal=(
                "one mark for all would stop copies at the first member",
                "remove it: each edge has its own mark",
            ),
        ),
        *COMMON_TRANSFER,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutTask(TransferTask):
    """A task of this pattern: one transfer for each edge of the tree, from the hub downwards."""


class FanOut(TransferPattern):
    """The pattern."""

    spec = SPEC

    def build(self, name: str, values: Values, document: Document) -> FanOutTask | None:
        topic: str = values["topic"] or ""
        check_own_name(topic, values.at("topic"), document)
        condition, action = values["filter"] or "", values["action"] or ""
        check_task_filter(condition, values.at("filter"), document, mark=default_mark(name, ()), is_number=False)
        if action:
            check_action(action, values.at("action"), document)
        fields = common_fields(name, SPEC.name, values, document, read_subscriptions(values["subscriptions"], document))
        hub = values["hub"]
        if not topic or not hub:
            return None
        places: dict[str, Place] = {}
        budget = values["hop_budget"] or HOP_BUDGET
        edges = list(self._edges(values["members"], hub, 1, {hub}, places, document, budget))
        if not edges:
            if values["members"] is not None and "members" not in values.faulty:
                document.fault(values.at("members"), "members is empty", "write members: [jfk, lga]")
            return None
        transfers = tuple(
            Transfer(
                name=f"{parent}.{child}",
                source=Endpoint(parent, topic),
                target=Endpoint(child, topic),
                feed=child,
                filter=condition,
                action=action,
                mark=default_mark(name, ((parent, ""), (child, ""))),
            )
            for parent, child in edges
        )
        fields["places"] = {**values.places, **{f"alias {alias}": place for alias, place in places.items()}}
        return FanOutTask(members=(hub, *places), transfers=transfers, **fields)

    def _edges(
        self,
        node: Any,
        parent: str,
        depth: int,
        seen: set[str],
        places: dict[str, Place],
        document: Document,
        budget: int,
    ) -> Iterator[tuple[str, str]]:
        if node is None or document.is_empty(node):
            return
        below: list[tuple[Any, str]] = []
        for key, value in document.items(node, "members", "{jfk: [lga, sfo], ord: []}"):
            try:
                alias = _ALIAS.parse(document.scalar(_ALIAS, key))
            except SettingError as wrong:
                document.fault(document.place(key), wrong.message, wrong.hint)
                continue
            if alias in seen:
                document.fault(document.place(key), f"member {alias} appears twice in the tree", "remove one")
                continue
            if depth > budget:
                document.fault(
                    document.place(key),
                    f"member {alias} is {depth} copies away from the hub, {budget} at most",
                    "write it nearer to the hub, or a larger hop_budget",
                )
                continue
            seen.add(alias)
            places[alias] = document.place(key)
            yield parent, alias
            if value is not None:
                below.append((value, alias))
        for value, alias in below:
            yield from self._edges(value, alias, depth + 1, seen, places, document, budget)

    def named(self, task: Any, namespaces: Mapping[str, NamespaceRef]) -> FanOutTask:
        def mark(transfer: Transfer) -> str:
            return default_mark(task.name, addresses_of(namespaces, (transfer.source.alias, transfer.target.alias)))

        made: FanOutTask = replace(task, transfers=tuple(replace(each, mark=mark(each)) for each in task.transfers))
        return made

    def check(self, task: Any, federation: Federation, document: Document) -> None:
        super().check(task, federation, document)
        for other in federation.tasks.values():
            if other.name == task.name:
                break
            edges = {(each.source, each.target) for each in other.transfers} if isinstance(other, FanOutTask) else set()
            for shared in [each for each in task.transfers if (each.source, each.target) in edges]:
                document.fault(
                    task.place,
                    f"task {other.name} copies {shared.source} to {shared.target} already",
                    "leave it out of one",
                )
        if document.faults:
            return
        ending = {each.routes[-1].split(".")[1] for each in self.audit(task) if each.drops}
        if ending:
            what = "copies that the filter then excludes are not copied further from " + ", ".join(sorted(ending))
            document.warn(
                task.places.get("action", task.place),
                f"the action changes a property that the filter reads: {what}",
                "remove that property from one of the two",
            )

    def audit(self, task: Any) -> Iterator[Flow]:
        above = {each.target.alias: each for each in task.transfers}
        for last in task.transfers:
            path: tuple[Transfer, ...] = (last,)
            yield flow(task, path)
            while path[0].source.alias in above:
                path = (above[path[0].source.alias], *path)
                yield flow(task, path)
