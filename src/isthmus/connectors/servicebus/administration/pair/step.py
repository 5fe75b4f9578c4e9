"""The steps that make one member of a pair equal to the other.

What it is: creation, change and deletion of entities and rules, each idempotent. What it is not: the choice of steps
(`isthmus.topology.pair.difference`), or their order (`isthmus.pairing`).
Specification: Microsoft Learn, "Service Bus resource manager", Atom API; docs/how-to/recover-from-a-disaster.md.

Invariants:
    I1. A step that was made already (the process was killed before it could note it) is repeated without harm.
    I2. An entity that contains messages is not deleted: it accepts none while they are counted.
    I3. A new subscription never matches more than its rules do, not even between its creation and theirs: it is created with
        its only rule, or with one that matches nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from azure.core.exceptions import AzureError, HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import SqlRuleFilter

from isthmus.connectors.servicebus.administration.client import administration_errors
from isthmus.connectors.servicebus.administration.default_rule import birth_rule
from isthmus.connectors.servicebus.administration.pair.client import PairClients
from isthmus.connectors.servicebus.administration.pair.count import PairCounts
from isthmus.connectors.servicebus.administration.pair.holds_messages import HoldsMessagesError
from isthmus.connectors.servicebus.administration.pair.property import applied, creation
from isthmus.errors import IsthmusError
from isthmus.topology import RuleState
from isthmus.topology.pair.description import TAKES_NONE, Description
from isthmus.topology.pair.difference import Step

__all__ = ["PairSteps"]

_DEFAULT_RULE = "$Default"
_NONE = RuleState(_DEFAULT_RULE, "1=0")
"""The rule of a new subscription whose first rule cannot be given at its creation: it matches nothing."""


class PairSteps:
    """Makes steps in one namespace.

    Args:
        clients: the clients of the namespace.
        counts: the counts of its messages.
    """

    def __init__(self, clients: PairClients, counts: PairCounts) -> None:
        self._clients = clients
        self._counts = counts

    def make(self, step: Step, *, with_messages: bool = False) -> None:
        """Makes one step.

        Args:
            step: of a `Drift`.
            with_messages: delete an entity even if it contains messages.

        Raises:
            HoldsMessagesError: the entity to delete contains messages.
            AdministrationError: no answer, or a refusal.
        """
        with administration_errors(self._clients.endpoint):
            if step.action == "delete":
                self._delete(step.entity, with_messages=with_messages)
            elif step.action == "create":
                self._create(step)
            else:
                self._update(step)

    def _create(self, step: Step) -> None:
        client, transport, _ = self._clients.open()
        entity, rules_left = step.entity, False
        try:
            if entity.kind == "queue":
                client.create_queue(entity.names[0], **creation(entity))
            elif entity.kind == "topic":
                client.create_topic(entity.names[0], **creation(entity))
            elif entity.kind == "subscription":
                born = birth_rule(step.rules)
                with transport.default_rule.given(born or _NONE):
                    client.create_subscription(*entity.names, **creation(entity))
                rules_left = born is None
            else:
                self._create_rule(entity)
                return
        except ResourceExistsError:
            # A repeated request, or another process: the next comparison finds any difference.
            if entity.kind != "subscription":
                return
            rules_left = True
        if rules_left:
            self._give_rules(entity, step.rules)
        if entity.status != "Active":
            self.set_status(entity, entity.status)

    def _give_rules(self, subscription: Description, rules: Iterable[Description]) -> None:
        """Replaces the rule with which a subscription was created; the subscription matches nothing until then."""
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
                self._clients.open().client.delete_rule(topic, name, _DEFAULT_RULE)

    def _create_rule(self, rule: Description) -> None:
        native = rule.native
        condition = native.filter or SqlRuleFilter("1=1")
        try:
            self._clients.open().client.create_rule(*rule.names, filter=condition, action=native.action)
        except ResourceExistsError:
            self._update_rule(rule)

    def _update_rule(self, rule: Description) -> None:
        client = self._clients.open().client
        topic, subscription, name = rule.names
        existing = client.get_rule(topic, subscription, name)
        existing.filter, existing.action = rule.native.filter, rule.native.action
        client.update_rule(topic, subscription, existing)

    def _update(self, step: Step) -> None:
        client, entity = self._clients.open().client, step.entity
        if entity.kind == "queue":
            client.update_queue(applied(client.get_queue(*entity.names), entity, step.changed))
        elif entity.kind == "topic":
            client.update_topic(applied(client.get_topic(*entity.names), entity, step.changed))
        elif entity.kind == "subscription":
            existing = client.get_subscription(*entity.names)
            client.update_subscription(entity.names[0], applied(existing, entity, step.changed))
        else:
            self._update_rule(entity)

    def set_status(self, entity: Description, status: str) -> None:
        """Changes the status of a queue, topic or subscription; does nothing where it does not exist.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        step = Step(action="update", before=entity, after=entity.with_settings(status=status), changed=("status",))
        with administration_errors(self._clients.endpoint), contextlib.suppress(ResourceNotFoundError):
            self._update(step)

    def _delete(self, entity: Description, *, with_messages: bool) -> None:
        client = self._clients.open().client
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
            except HttpResponseError:  # not without an answer: it may be deleted yet, and accepts nothing until then
                if not with_messages:
                    self._accept_messages(entity)
                raise

    def _refuse_messages(self, entity: Description) -> None:
        """Raises where an entity contains messages; from the count on it accepts none. A subscription has no status for that."""
        try:
            if _is_stopped_to_count(entity):
                self.set_status(entity, "SendDisabled")
            count = self._counts.of_one(entity)
        except (AzureError, IsthmusError):
            self._accept_messages(entity)
            raise
        if count:
            if _is_stopped_to_count(entity):
                self.set_status(entity, entity.status)
            raise HoldsMessagesError(f"{self._clients.alias}/{entity.path}", count)

    def _accept_messages(self, entity: Description) -> None:
        """Restores the status that an entity had before its messages were counted; the caller has an error to report."""
        if _is_stopped_to_count(entity):
            with contextlib.suppress(IsthmusError):
                self.set_status(entity, entity.status)


def _is_stopped_to_count(entity: Description) -> bool:
    return entity.kind != "subscription" and entity.status not in TAKES_NONE
