"""Topics of a Kafka cluster: their description, creation and deletion.

What it is: the calls to a cluster that `apply` needs. They block. What it is not: the decision what to create.
Specification: Apache Kafka documentation, "Topic Configs".

Invariants:
    I1. `create` never changes an existing topic.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic

from isthmus.connectors.kafka.cluster import QUERY_SECONDS, ClusterClient, TopicView, cluster_id, describe_topic
from isthmus.connectors.kafka.option import read_cluster
from isthmus.errors import EntityExistsError, EntityNotFoundError, IsthmusError

__all__ = ["KafkaAdministration"]


class KafkaAdministration:
    """The topics of one cluster.

    Args:
        options: `isthmus.connectors.kafka.option.ADMINISTRATION`.

    Raises:
        ConfigError: an option is invalid.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = read_cluster(options)

    def describe(self, topic: str) -> TopicView | None:
        """A topic's description; None where it does not exist.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        try:
            return describe_topic(self._options, topic)
        except EntityNotFoundError:
            return None

    def cluster_id(self) -> str:
        """The cluster's identity.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        return cluster_id(self._options)

    def create(
        self, topic: str, partitions: int, *, replication: int = -1, config: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic.

        Args:
            topic: its name.
            partitions: their number.
            replication: copies of each; -1: the cluster's default.
            config: settings of the topic.

        Raises:
            EntityExistsError: it exists already.
            IsthmusError: no answer, or a refusal.
        """
        wanted = NewTopic(topic, num_partitions=partitions, replication_factor=replication, config=dict(config or {}))
        asked = ClusterClient(self._options, topic)
        answer = asked.admin.create_topics([wanted], request_timeout=QUERY_SECONDS)[topic]
        try:
            asked.result(answer)
        except IsthmusError:
            error = answer.exception() if answer.done() else None
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise EntityExistsError(topic) from None
            raise

    def delete(self, topic: str) -> None:
        """Deletes a topic with its records.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        asked = ClusterClient(self._options, topic)
        asked.result(asked.admin.delete_topics([topic], request_timeout=QUERY_SECONDS)[topic])
