"""The messages of a member of a pair: the count of each entity.

What it is: the runtime properties of queues, topics and subscriptions. What it is not: a decision about them (`step`, `isthmus.pairing`).
Specification: Microsoft Learn, "Service Bus resource manager", Atom API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from isthmus.connectors.servicebus.administration.client import administration_errors
from isthmus.connectors.servicebus.administration.listing import listed, listed_below
from isthmus.connectors.servicebus.administration.message_count import Counts
from isthmus.connectors.servicebus.administration.pair.client import PairClients
from isthmus.topology.pair.description import Description

__all__ = ["PairCounts"]


class PairCounts:
    """The counts of one namespace.

    Args:
        clients: the clients of the namespace.
    """

    def __init__(self, clients: PairClients) -> None:
        self._clients = clients

    def of_all(self, entities: Iterable[Description]) -> Mapping[str, Counts]:
        """Messages of queues, subscriptions and topics (scheduled ones) by path; entities without messages are omitted.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        with administration_errors(self._clients.endpoint):
            client = self._clients.open().client
            found = {each.name.lower(): Counts.of(each) for each in listed(client.list_queues_runtime_properties)}
            topics = [each for each in entities if each.kind == "topic"]
            if topics:
                for each in listed(client.list_topics_runtime_properties):
                    found[each.name.lower()] = Counts(scheduled=int(each.scheduled_message_count or 0))
            for part in self._clients.map(self._subscription_counts, topics):
                found |= part
        return {
            each.path: counts
            for each in entities
            if each.kind != "rule" and (counts := found.get(each.path.lower())) is not None and counts.total
        }

    def _subscription_counts(self, topic: Description) -> dict[str, Counts]:
        name = topic.names[0]
        found = listed_below(self._clients.open().client.list_subscriptions_runtime_properties, name)
        return {f"{name}/Subscriptions/{each.name}".lower(): Counts.of(each) for each in found}

    def of_one(self, entity: Description) -> int:
        """Messages of a queue, a subscription, or a topic with all its subscriptions.

        Raises:
            AzureError: no answer, or a refusal.
        """
        client = self._clients.open().client
        if entity.kind == "queue":
            return Counts.of(client.get_queue_runtime_properties(*entity.names)).total
        if entity.kind == "subscription":
            return Counts.of(client.get_subscription_runtime_properties(*entity.names)).total
        scheduled = int(client.get_topic_runtime_properties(*entity.names).scheduled_message_count or 0)
        return scheduled + sum(each.total for each in self._subscription_counts(entity).values())
