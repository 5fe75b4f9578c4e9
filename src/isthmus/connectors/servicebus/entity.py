"""Queues, topics, subscriptions and rules, one by one, for an operator.

What it is: list, show, create, update and delete by path, through azure-servicebus's administration client, at any namespace with
its Atom API (docs/explanation/protocol.md, Administration). What it is not: the administration of a federation (`administration`), which
is planned first.

Paths are the service's own: `orders`, `flights`, `flights/Subscriptions/board`, `flights/Subscriptions/board/Rules/late`.

Invariants:
    I1. An update sends the entity as it was read with only the named settings replaced, because the API replaces whole entities.
    I2. A subscription that is created with a filter never has the rule that matches everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import SqlRuleAction, SqlRuleFilter

from isthmus.connectors.servicebus.administration.client import OpenClient, administration_errors
from isthmus.connectors.servicebus.administration.entity_property import rule_state, waiting_in_topic
from isthmus.connectors.servicebus.administration.listing import listed, listed_below
from isthmus.connectors.servicebus.entity_setting import SETTINGS, shown
from isthmus.errors import EntityExistsError, EntityNotFoundError, InvalidArgumentError, IsthmusError
from isthmus.topology.state import DEFAULT_RULE, RuleState

__all__ = ["Entities", "EntityPath", "EntityRow"]


@dataclass(frozen=True, slots=True)
class EntityPath:
    """The path of an entity or a rule.

    Attributes:
        name: the queue or topic.
        subscription: of the topic; empty for the queue or topic itself.
        rule: of the subscription; empty for the subscription itself.
    """

    name: str
    subscription: str = ""
    rule: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a path; `Subscriptions` and `Rules` in any case.

        Raises:
            InvalidArgumentError: it is empty, or a part is missing.
        """
        # With a slash at both ends a part without a name is detected: `flights/Subscriptions/` is not a queue.
        path = f"/{text.strip('/')}/" if text.strip("/") else ""
        name, at, rest = _cut(path, "/subscriptions/")
        subscription, below, rule = _cut(rest, "/rules/") if at else ("", False, "")
        name, subscription, rule = name.strip("/"), subscription.strip("/"), rule.strip("/")
        if not name or (at and not subscription) or (below and not rule) or "/" in subscription + rule:
            raise InvalidArgumentError(
                f"{text!r} is not an entity's path; write QUEUE, TOPIC, TOPIC/Subscriptions/NAME or TOPIC/Subscriptions/NAME/Rules/RULE"
            )
        return cls(name, subscription, rule)

    def __str__(self) -> str:
        below = f"/Subscriptions/{self.subscription}" if self.subscription else ""
        return self.name + below + (f"/Rules/{self.rule}" if self.rule else "")


class EntityRow(NamedTuple):
    """One entity in a list; counts are 0 where its kind has none."""

    path: str
    kind: str
    status: str
    active: int
    dead_letters: int
    scheduled: int
    transfer: int
    size_bytes: int


class Entities:
    """The entities of one namespace. Calls block.

    Args:
        opened: the administration client; closed at the end.
    """

    def __init__(self, opened: OpenClient) -> None:
        self._client, self._transport, self._endpoint = opened

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def paths(self) -> list[str]:
        """The paths of all queues, topics and subscriptions, for completion.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        with self._errors():
            found = [str(queue.name) for queue in listed(self._client.list_queues)]
            for topic in listed(self._client.list_topics):
                found.append(str(topic.name))
                found += [
                    str(EntityPath(topic.name, each.name))
                    for each in listed_below(self._client.list_subscriptions, topic.name)
                ]
        return sorted(found)

    def rows(self) -> list[EntityRow]:
        """All queues, topics and subscriptions with their counts, by path.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        with self._errors():
            statuses = {queue.name: queue for queue in listed(self._client.list_queues)}
            found = [
                _row(EntityPath(each.name), "queue", statuses.get(each.name), each)
                for each in listed(self._client.list_queues_runtime_properties)
            ]
            topics = {topic.name: topic for topic in listed(self._client.list_topics)}
            for each in listed(self._client.list_topics_runtime_properties):
                found.append(_row(EntityPath(each.name), "topic", topics.get(each.name), each))
                subscriptions = {one.name: one for one in listed_below(self._client.list_subscriptions, each.name)}
                found += [
                    _row(EntityPath(each.name, one.name), "subscription", subscriptions.get(one.name), one)
                    for one in listed_below(self._client.list_subscriptions_runtime_properties, each.name)
                ]
        return sorted(found, key=lambda row: row.path.lower())

    def show(self, path: EntityPath) -> dict[str, Any]:
        """An entity's kind, settings, counts and rules, as plain values.

        Raises:
            EntityNotFoundError: it does not exist.
            AdministrationError: no answer, or a refusal.
        """
        with self._errors():
            if path.rule:
                return {"path": str(path), "kind": "rule", **_rule(self._find_rule(path))}
            kind, existing = self._find(path)
            settings = {
                name: _path(value) if name.startswith("forward_") else shown(value)
                for name in SETTINGS[kind]
                if (value := getattr(existing, name, None)) is not None
            }
            row = _row(path, kind, existing, self._runtime(path, kind))
            found: dict[str, Any] = {"path": str(path), "kind": kind, "settings": settings, "counts": _counts(row)}
            if kind == "subscription":
                rules = listed(self._client.list_rules, path.name, path.subscription)
                found["rules"] = [{"name": each.name, **_rule(rule_state(each))} for each in rules]
            if kind == "topic":
                found["subscriptions"] = [each.name for each in listed(self._client.list_subscriptions, path.name)]
            return found

    def create(
        self, path: EntityPath, kind: str, settings: Mapping[str, Any], *, condition: str = "", action: str = ""
    ) -> None:
        """Create an entity or a rule.

        Args:
            path: the path to create.
            kind: `queue`, `topic`, `subscription` or `rule`.
            settings: from `parse_settings`.
            condition: SQL filter of a rule, or of a subscription's first rule; empty: everything.
            action: SQL action of that rule.

        Raises:
            EntityExistsError: it exists already.
            AdministrationError: no answer, or a refusal.
        """
        given = dict(settings)
        status = given.pop("status", "Active")
        with self._errors():
            try:
                with self._transport.repetition.done_before(ResourceExistsError):
                    self._create(path, kind, given, condition, action)
            except ResourceExistsError:
                raise EntityExistsError(str(path)) from None
            except ResourceNotFoundError:
                raise EntityNotFoundError(str(EntityPath(path.name, path.subscription if path.rule else ""))) from None
        if status != "Active":
            try:
                self.update(path, {"status": status})
            except IsthmusError as error:
                error.add_note(f"{path} was created, and is Active")
                raise

    def _create(self, path: EntityPath, kind: str, given: dict[str, Any], condition: str, action: str) -> None:
        match kind:
            case "queue":
                self._refuse_name(path, "topic")
                self._client.create_queue(path.name, **given)
            case "topic":
                self._refuse_name(path, "queue")
                self._client.create_topic(path.name, **given)
            case "subscription":
                rule = RuleState(DEFAULT_RULE, condition or "1=1", action) if condition or action else None
                with self._transport.default_rule.given(rule):
                    self._client.create_subscription(path.name, path.subscription, **given)
            case _:
                self._client.create_rule(
                    path.name,
                    path.subscription,
                    path.rule,
                    filter=SqlRuleFilter(condition or "1=1"),
                    action=SqlRuleAction(action) if action else None,
                )

    def update(
        self, path: EntityPath, settings: Mapping[str, Any], *, condition: str = "", action: str | None = None
    ) -> None:
        """Change settings of an entity, or filter and action of a rule; other settings are unchanged.

        Raises:
            EntityNotFoundError: it does not exist.
            EntityChangedError: another client has changed it since it was read; only a namespace of isthmus reports this.
            AdministrationError: no answer, or a refusal, e.g. of a setting that is fixed at creation.
        """
        with self._errors(), self._transport.condition.required():
            if path.rule:
                self._find_rule(path)
                rule = self._client.get_rule(path.name, path.subscription, path.rule)
                if condition:
                    rule.filter = SqlRuleFilter(condition)
                if action is not None:
                    rule.action = SqlRuleAction(action) if action else None
                self._client.update_rule(path.name, path.subscription, rule)
                return
            kind, existing = self._find(path)
            for name, value in settings.items():
                setattr(existing, name, value)
            match kind:
                case "queue":
                    self._client.update_queue(existing)
                case "topic":
                    self._client.update_topic(existing)
                case _:
                    self._client.update_subscription(path.name, existing)

    def delete(self, path: EntityPath) -> None:
        """Delete an entity with its messages, or a rule.

        Raises:
            EntityNotFoundError: it does not exist.
            AdministrationError: no answer, or a refusal.
        """
        with self._errors():
            try:
                is_queue = not path.subscription and self._find(path)[0] == "queue"
                with self._transport.repetition.done_before(ResourceNotFoundError):
                    if path.rule:
                        self._client.delete_rule(path.name, path.subscription, path.rule)
                    elif path.subscription:
                        self._client.delete_subscription(path.name, path.subscription)
                    elif is_queue:
                        self._client.delete_queue(path.name)
                    else:
                        self._client.delete_topic(path.name)
            except ResourceNotFoundError:
                raise EntityNotFoundError(str(path)) from None

    def kind(self, path: EntityPath) -> str:
        """`queue`, `topic`, `subscription` or `rule`.

        Raises:
            EntityNotFoundError: it does not exist.
            AdministrationError: no answer, or a refusal.
        """
        if path.rule:
            return "rule"
        with self._errors():
            return self._find(path)[0]

    def waiting(self, path: EntityPath) -> int:
        """The number of messages that a deletion would delete; of a topic, its scheduled messages and those of all its subscriptions.

        Raises:
            EntityNotFoundError: it does not exist.
            AdministrationError: no answer, or a refusal.
        """
        with self._errors():
            if path.rule:
                self._find_rule(path)
                return 0
            kind, _ = self._find(path)
            if kind == "topic":
                return waiting_in_topic(self._client, path.name)
            return int(self._runtime(path, kind).total_message_count or 0)

    def _find(self, path: EntityPath) -> tuple[str, Any]:
        kinds = ("subscription",) if path.subscription else ("queue", "topic")
        for kind in kinds:
            try:
                names = (path.name, path.subscription) if kind == "subscription" else (path.name,)
                return kind, getattr(self._client, f"get_{kind}")(*names)
            # The client fails with AttributeError on the description of an entity of another kind.
            except (ResourceNotFoundError, AttributeError):
                continue
        raise EntityNotFoundError(str(path))

    def _find_rule(self, path: EntityPath) -> RuleState:
        try:
            return rule_state(self._client.get_rule(path.name, path.subscription, path.rule))
        except ResourceNotFoundError:
            raise EntityNotFoundError(str(path)) from None

    def _runtime(self, path: EntityPath, kind: str) -> Any:
        names = (path.name, path.subscription) if kind == "subscription" else (path.name,)
        return getattr(self._client, f"get_{kind}_runtime_properties")(*names)

    def _refuse_name(self, path: EntityPath, kind: str) -> None:
        """A queue and a topic cannot have the same name; the service reports this as a conflict without a text."""
        try:
            getattr(self._client, f"get_{kind}")(path.name)
        except (ResourceNotFoundError, AttributeError):
            return
        except HttpResponseError:
            return  # the creation reports the reason
        raise EntityExistsError(str(path))

    def _errors(self) -> AbstractContextManager[None]:
        return administration_errors(self._endpoint)


def _cut(path: str, word: str) -> tuple[str, bool, str]:
    """The parts of the path before and after a word, and whether it occurs; slashes stay at both ends."""
    at = path.lower().find(word)
    return (path, False, "") if at < 0 else (path[: at + 1], True, path[at + len(word) - 1 :])


def _row(path: EntityPath, kind: str, existing: Any, runtime: Any) -> EntityRow:
    status = getattr(existing, "status", None)

    def count(name: str) -> int:
        return int(getattr(runtime, name, None) or 0)

    return EntityRow(
        str(path),
        kind,
        shown(status) if status is not None else "",
        count("active_message_count"),
        count("dead_letter_message_count"),
        count("scheduled_message_count"),
        count("transfer_message_count") + count("transfer_dead_letter_message_count"),
        count("size_in_bytes"),
    )


def _counts(row: EntityRow) -> dict[str, int]:
    return {name: getattr(row, name) for name in EntityRow._fields[3:]}


def _rule(rule: RuleState) -> dict[str, str]:
    return {"filter": rule.filter, **({"action": rule.action} if rule.action else {})}


def _path(target: str) -> str:
    return urlsplit(target).path.strip("/") if "://" in target else target
