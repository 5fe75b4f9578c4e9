"""One member of a pair, through azure-servicebus's administration client.

What it is: everything that pairing asks of a namespace: all that it holds, steps, counts, statuses, and the marker that
tells which member is active. What it is not: a decision (`isthmus.topology.pair.difference`, `isthmus.pairing`).
Spec: Microsoft Learn, "Service Bus resource manager", Atom API; docs/how-to/recover-from-a-disaster.md. A little over 400 lines: all
questions share the clients and the pool of one namespace.

Invariants:
    I1. A step that was made already (the process was killed before it could note it) is made again without harm.
    I2. An entity that holds messages is not deleted: it takes none while they are counted.
    I3. Descriptions that were read once are given again only while the namespace tells that none has changed since before
        they were read.
    I4. A new subscription never selects more than its rules do, not even between its creation and theirs: it is created with
        its only rule, or with one that selects nothing.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Self, TypeVar

from azure.core.exceptions import AzureError, HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import SqlRuleFilter

from isthmus.connectors.servicebus.administration.client import (
    OpenClient,
    administration_errors,
    open_administration_client,
)
from isthmus.connectors.servicebus.administration.default_rule import birth_rule
from isthmus.connectors.servicebus.administration.holds_messages import HoldsMessagesError
from isthmus.connectors.servicebus.administration.listing import listed, listed_below
from isthmus.connectors.servicebus.administration.message_count import Counts
from isthmus.connectors.servicebus.administration.pair_property import (
    applied,
    creation,
    describe_queue,
    describe_rule,
    describe_subscription,
    describe_topic,
)
from isthmus.errors import IsthmusError
from isthmus.topology import NamespaceRef, RuleState
from isthmus.topology.pair.description import CLOSED, MARKER, TAKES_NONE, Description
from isthmus.topology.pair.difference import Step

__all__ = ["PairMember"]

_THREADS = 6
_READ_TIMEOUT_SECONDS = 8.0
_RETRIES = 1
_DEFAULT_RULE = "$Default"
_NONE = RuleState(_DEFAULT_RULE, "1=0")
"""What a subscription is created with when its first rule cannot be given to its creation: it selects nothing."""

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


class _Read(NamedTuple):
    """Descriptions, and the version that the namespace told before they were read; empty for none."""

    version: str
    descriptions: list[Description]


class PairMember:
    """A namespace of a pair. Its methods block; several threads may use it.

    Args:
        namespace: how to reach it.
    """

    def __init__(self, namespace: NamespaceRef) -> None:
        self.alias = namespace.alias
        self._namespace = namespace
        self._local = threading.local()
        self._opened: list[OpenClient] = []
        self._lock = threading.Lock()
        self._read: _Read | None = None
        self.endpoint = self._open().endpoint
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"pair-{namespace.alias}")
        # A reading waits for work of the pool: in the pool itself, readings that overlap would leave that work no thread.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix=f"pair-{namespace.alias}-read")

    def close(self) -> None:
        """Close all connections."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            opened, self._opened = self._opened, []
        for each in opened:
            each.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> OpenClient:
        """This thread's client: a transport that adds rules serves one thread."""
        found: OpenClient | None = getattr(self._local, "opened", None)
        if found is None:
            found = open_administration_client(
                self._namespace, read_timeout_seconds=_READ_TIMEOUT_SECONDS, retries=_RETRIES
            )
            self._local.opened = found
            with self._lock:
                self._opened.append(found)
        return found

    def map(self, work: Callable[[_Asked], _Answer], asked: Iterable[_Asked]) -> list[_Answer]:
        """Answers in the order of what is asked, several requests at a time."""
        return list(self._pool.map(work, asked))

    # ---- what exists

    def identity(self) -> str:
        """What the namespace calls itself.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        with administration_errors(self.endpoint):
            return self._open().identity()

    @property
    def tells_changes(self) -> bool:
        """Whether the namespace has told a version of its descriptions, so that reading them again costs one request."""
        return self._read is not None and bool(self._read.version)

    def descriptions(self) -> list[Description]:
        """All queues, topics, subscriptions and rules.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        with administration_errors(self.endpoint):
            version = self._version()
            read = self._read
            if not version or read is None or read.version != version:
                read = self._read = _Read(version, self._ask_descriptions())
            return list(read.descriptions)

    def _version(self) -> str:
        opened = self._open()
        opened.transport.catalog_version = ""
        opened.client.get_namespace_properties()
        return opened.transport.catalog_version

    def _ask_descriptions(self) -> list[Description]:
        queues = self._pool.submit(self._queues)
        topics = [describe_topic(each) for each in listed(self._open().client.list_topics)]
        subscriptions = [each for found in self.map(self._subscriptions, topics) for each in found]
        rules = [each for found in self.map(self._rules, subscriptions) for each in found]
        return [*queues.result(), *topics, *subscriptions, *rules]

    def begin_descriptions(self) -> Future[list[Description]]:
        """Begin to ask for `descriptions`, after those that were begun before; cancel what is not needed."""
        return self._reader.submit(self.descriptions)

    def _queues(self) -> list[Description]:
        return [describe_queue(each) for each in listed(self._open().client.list_queues)]

    def _subscriptions(self, topic: Description) -> list[Description]:
        name = topic.names[0]
        found = listed_below(self._open().client.list_subscriptions, name)
        return [describe_subscription(name, each) for each in found]

    def _rules(self, subscription: Description) -> list[Description]:
        topic, name = subscription.names
        found = listed_below(self._open().client.list_rules, topic, name)
        return [describe_rule(topic, name, each) for each in found]

    def holds(self, entity: Description) -> bool:
        """Whether there is an entity or rule of this name now, of whatever kind.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        with administration_errors(self.endpoint):
            try:
                getattr(self._open().client, f"get_{entity.kind}")(*entity.names)
            except ResourceNotFoundError:
                return False
            except AttributeError:  # of a topic where a queue is asked for, or the other way round
                return True
            return True

    def counts(self, entities: Iterable[Description]) -> Mapping[str, Counts]:
        """Messages of queues, subscriptions and topics (those scheduled there) by path; those without any are left out.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        with administration_errors(self.endpoint):
            client = self._open().client
            found = {each.name.lower(): Counts.of(each) for each in listed(client.list_queues_runtime_properties)}
            topics = [each for each in entities if each.kind == "topic"]
            if topics:
                for each in listed(client.list_topics_runtime_properties):
                    found[each.name.lower()] = Counts(scheduled=int(each.scheduled_message_count or 0))
            for part in self.map(self._subscription_counts, topics):
                found |= part
        return {
            each.path: counts
            for each in entities
            if each.kind != "rule" and (counts := found.get(each.path.lower())) is not None and counts.total
        }

    def _subscription_counts(self, topic: Description) -> dict[str, Counts]:
        name = topic.names[0]
        found = listed_below(self._open().client.list_subscriptions_runtime_properties, name)
        return {f"{name}/Subscriptions/{each.name}".lower(): Counts.of(each) for each in found}

    # ---- steps

    def make(self, step: Step, *, with_messages: bool = False) -> None:
        """Make one step.

        Args:
            step: of a `Drift`.
            with_messages: delete an entity although it holds messages.

        Raises:
            HoldsMessagesError: the entity to delete holds messages.
            AdministrationError: no answer, or a refusal.
        """
        with administration_errors(self.endpoint):
            if step.action == "delete":
                self._delete(step.entity, with_messages=with_messages)
            elif step.action == "create":
                self._create(step)
            else:
                self._update(step)

    def _create(self, step: Step) -> None:
        client, transport, _ = self._open()
        entity, rules_left = step.entity, False
        try:
            if entity.kind == "queue":
                client.create_queue(entity.names[0], **creation(entity))
            elif entity.kind == "topic":
                client.create_topic(entity.names[0], **creation(entity))
            elif entity.kind == "subscription":
                born = birth_rule(step.rules)
                with transport.default_rule(born or _NONE):
                    client.create_subscription(*entity.names, **creation(entity))
                rules_left = born is None
            else:
                self._create_rule(entity)
                return
        except ResourceExistsError:
            # A request that was sent again, or another process: whatever differs is the next comparison's.
            if entity.kind != "subscription":
                return
            rules_left = True
        if rules_left:
            self._give_rules(entity, step.rules)
        if entity.status != "Active":
            self.set_status(entity, entity.status)

    def _give_rules(self, subscription: Description, rules: Iterable[Description]) -> None:
        """Replace the rule that a subscription was created with; it selects nothing until then."""
        wanted = {rule.key[-1]: rule for rule in rules}
        for name, rule in wanted.items():
            if name != _DEFAULT_RULE.lower():
                self._create_rule(rule)
        default = wanted.get(_DEFAULT_RULE.lower())
        if default is not None:
            self._update_rule(default)
        else:
            with contextlib.suppress(ResourceNotFoundError):
                topic, name = subscription.names
                self._open().client.delete_rule(topic, name, _DEFAULT_RULE)

    def _create_rule(self, rule: Description) -> None:
        native = rule.native
        condition = native.filter or SqlRuleFilter("1=1")
        try:
            self._open().client.create_rule(*rule.names, filter=condition, action=native.action)
        except ResourceExistsError:
            self._update_rule(rule)

    def _update_rule(self, rule: Description) -> None:
        client = self._open().client
        topic, subscription, name = rule.names
        stands = client.get_rule(topic, subscription, name)
        stands.filter, stands.action = rule.native.filter, rule.native.action
        client.update_rule(topic, subscription, stands)

    def _update(self, step: Step) -> None:
        client, entity = self._open().client, step.entity
        if entity.kind == "queue":
            client.update_queue(applied(client.get_queue(*entity.names), entity, step.changed))
        elif entity.kind == "topic":
            client.update_topic(applied(client.get_topic(*entity.names), entity, step.changed))
        elif entity.kind == "subscription":
            stands = client.get_subscription(*entity.names)
            client.update_subscription(entity.names[0], applied(stands, entity, step.changed))
        else:
            self._update_rule(entity)

    def set_status(self, entity: Description, status: str) -> None:
        """Change the status of a queue, topic or subscription; nothing happens where it is gone.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        step = Step(action="update", before=entity, after=entity.with_settings(status=status), changed=("status",))
        with administration_errors(self.endpoint), contextlib.suppress(ResourceNotFoundError):
            self._update(step)

    def _delete(self, entity: Description, *, with_messages: bool) -> None:
        client = self._open().client
        with contextlib.suppress(ResourceNotFoundError):
            if entity.kind == "rule":
                client.delete_rule(*entity.names)
                return
            if not with_messages:
                self._refuse_messages(entity)
            try:
                if entity.kind == "queue":
                    client.delete_queue(*entity.names)
                elif entity.kind == "topic":
                    client.delete_topic(*entity.names)
                else:
                    client.delete_subscription(*entity.names)
            except HttpResponseError:  # not without an answer: it may be deleted yet, and takes nothing until then
                if not with_messages:
                    self._accept_messages(entity)
                raise

    def _refuse_messages(self, entity: Description) -> None:
        """Raise where an entity holds messages; from the look on it takes none. A subscription has no status for that."""
        try:
            if _is_stopped_to_count(entity):
                self.set_status(entity, "SendDisabled")
            count = self._count(entity)
        except (AzureError, IsthmusError):
            self._accept_messages(entity)
            raise
        if count:
            if _is_stopped_to_count(entity):
                self.set_status(entity, entity.status)
            raise HoldsMessagesError(f"{self.alias}/{entity.path}", count)

    def _accept_messages(self, entity: Description) -> None:
        """Give an entity the status back that it had before its messages were counted; its caller has an error to tell."""
        if _is_stopped_to_count(entity):
            with contextlib.suppress(IsthmusError):
                self.set_status(entity, entity.status)

    def _count(self, entity: Description) -> int:
        client = self._open().client
        if entity.kind == "queue":
            return Counts.of(client.get_queue_runtime_properties(*entity.names)).total
        if entity.kind == "subscription":
            return Counts.of(client.get_subscription_runtime_properties(*entity.names)).total
        scheduled = int(client.get_topic_runtime_properties(*entity.names).scheduled_message_count or 0)
        return scheduled + sum(each.total for each in self._subscription_counts(entity).values())

    # ---- the marker

    def read_marker(self, pair: str) -> Mapping[str, Any]:
        """What the namespace says of a pair; empty where it says nothing.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        with administration_errors(self.endpoint):
            try:
                return _read(self._open().client.get_queue(_marker(pair)).user_metadata)
            except ResourceNotFoundError:
                return {}

    def write_marker(
        self, pair: str, value: Mapping[str, Any], *, unless: Callable[[Mapping[str, Any]], bool] = lambda marker: False
    ) -> bool:
        """Say something of a pair in the namespace: in the metadata of a queue that holds no message.

        Args:
            pair: its name.
            value: what to say.
            unless: is asked about what the namespace says now, just before that is replaced.

        Returns:
            Whether the namespace says it; False where `unless` kept what was there.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        text = json.dumps(dict(value))
        with administration_errors(self.endpoint):
            client = self._open().client
            try:
                stands = client.get_queue(_marker(pair))
            except ResourceNotFoundError:
                client.create_queue(_marker(pair), user_metadata=text)
                stands = client.get_queue(_marker(pair))
            if unless(_read(stands.user_metadata)):
                return False
            if stands.user_metadata != text or str(getattr(stands.status, "value", stands.status)) != CLOSED["queue"]:
                stands.user_metadata, stands.status = text, CLOSED["queue"]
                client.update_queue(stands)
        return True

    def delete_marker(self, pair: str) -> None:
        """Say nothing of a pair any more.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        with administration_errors(self.endpoint), contextlib.suppress(ResourceNotFoundError):
            self._open().client.delete_queue(_marker(pair))


def _is_stopped_to_count(entity: Description) -> bool:
    return entity.kind != "subscription" and entity.status not in TAKES_NONE


def _read(text: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _marker(pair: str) -> str:
    return f"{MARKER}{pair}"
