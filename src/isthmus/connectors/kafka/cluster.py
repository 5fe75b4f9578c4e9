"""A Kafka cluster: its description of a topic, and the meaning of its errors.

What it is: the common settings of all clients of librdkafka, the description of a topic before it is used, and the conversion of errors to errors of
isthmus and as refusals. Calls block; threads of a source or a target make them. What it is not: a consumer or a producer.
Specification: librdkafka documentation, "Configuration properties" and "Error handling".

Invariants:
    I1. No error text contains a password.
    I2. Describing a topic never creates it.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.kafka.option import ClusterOptions, SourceOptions
from isthmus.connectors.secret import scrub
from isthmus.errors import ConnectionLostError, EntityNotFoundError, IsthmusError, UnauthorizedError

__all__ = [
    "ONE_BY_ONE",
    "ClusterClient",
    "CoordinatorAwayError",
    "KafkaFailureError",
    "TopicView",
    "cluster_id",
    "consumer_settings",
    "error_of",
    "describe_topic",
    "may_pass",
    "refusal_of",
    "settings",
]

QUERY_SECONDS = 10.0
_POLL_SECONDS = 0.02
_NO_ID = str(Uuid(0, 0))
# The default of `message.max.bytes` and of `max.message.bytes`.
MESSAGE_BYTES = 1_000_000

# Azure's load balancers forget a connection after four idle minutes, and then drop its packets: a request would
# wait for its time-out. librdkafka closes no idle connection by itself, and connects again when it needs one.
IDLE_SECONDS = 180

_LOG = logging.getLogger("isthmus.kafka")
_UNAUTHORIZED = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
# librdkafka's error texts, with the code of a refused login, for a login whose connection was cut, and for a token that could not be
# fetched, in libcurl's texts.
_CUT = re.compile(
    "Local: Broker transport failure|Local: Timed out|"
    "OAUTHBEARER token: (?:Failed to connect|Could not (?:connect|resolve)|.*timed out|(?:Recv|Send) failure|Empty reply)"
)
_COORDINATOR = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._WAIT_COORD,
}
_ABSENT = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_LASTING = {
    KafkaError._INVALID_ARG,
    KafkaError._SSL,
    KafkaError.INVALID_REQUIRED_ACKS,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError.INVALID_GROUP_ID,
    KafkaError.INVALID_SESSION_TIMEOUT,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL,
}
# The second one: larger than a segment of the log (`segment.bytes`).
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError._BAD_MSG}
_OF_THE_MESSAGE = {KafkaError.INVALID_MSG, KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD}
_UNKNOWN = {
    KafkaError._MSG_TIMED_OUT,
    KafkaError._PURGE_INFLIGHT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError._TRANSPORT,
}


class CoordinatorAwayError(ConnectionLostError):
    """The broker that keeps a group's offsets is being elected, or loads them: it answers within seconds."""


class KafkaFailureError(IsthmusError):
    """A cluster, or its client, refused for another reason."""

    code = "kafka"


# Of a producer whose speed is irrelevant: while a record has no answer nothing is sent after it, so that no record counts as stored
# because a later one was (`partition_opening`).
ONE_BY_ONE: Mapping[str, Any] = {"enable.idempotence": True, "max.in.flight.requests.per.connection": 1}


class TopicView(NamedTuple):
    """A cluster's description of a topic.

    Attributes:
        cluster_id: the cluster's identity.
        partitions: how many it has.
        message_bytes: the largest record batch that it accepts.
        topic_id: the topic's id: a topic that is created again has another one; empty: the cluster has none.
    """

    cluster_id: str
    partitions: int
    message_bytes: int = MESSAGE_BYTES
    topic_id: str = ""

    @property
    def identity(self) -> str:
        """Which topic of all clusters it is, as `offset_note` has it; empty where the cluster has no ids."""
        return f"{self.cluster_id}:{self.topic_id}" if self.topic_id else ""


def settings(options: ClusterOptions) -> dict[str, Any]:
    """The settings of a client.

    Raises:
        SecretError: a reference cannot be resolved.
    """
    return {
        "logger": _LOG,
        "log.connection.close": False,
        "connections.max.idle.ms": IDLE_SECONDS * 1000,
        **options.client(),
    }


def consumer_settings(options: SourceOptions, *, tells_ends: bool) -> dict[str, Any]:
    """The settings of a source's consumer.

    Raises:
        SecretError: a reference cannot be resolved.
    """
    return {
        "queued.max.messages.kbytes": 16_384,
        "fetch.queue.backoff.ms": 20,
        **settings(options),
        "group.id": options.group,
        **({"group.instance.id": options.member} if options.member else {}),
        "session.timeout.ms": int(options.session_seconds * 1000),
        "heartbeat.interval.ms": int(options.session_seconds * 1000) // 4,
        # Also used where an offset no longer exists: `start` is for a group without offsets (`consumer.latest`).
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": tells_ends,
        "partition.assignment.strategy": "cooperative-sticky",
    }


def describe_topic(options: ClusterOptions, topic: str) -> TopicView:
    """The cluster's description of a topic; blocks for `QUERY_SECONDS` at most for each request.

    Raises:
        IsthmusError: no answer, the topic does not exist, or access is denied.
    """
    asked = ClusterClient(options, topic)
    cluster = asked.result(asked.admin.describe_cluster(request_timeout=QUERY_SECONDS))
    found = asked.result(asked.admin.describe_topics(TopicCollection([topic]), request_timeout=QUERY_SECONDS)[topic])
    message_bytes = _message_bytes(asked.admin, topic)
    topic_id = "" if str(found.topic_id) == _NO_ID else str(found.topic_id)
    return TopicView(str(cluster.cluster_id or ""), len(found.partitions), message_bytes, topic_id)


def cluster_id(options: ClusterOptions) -> str:
    """The identity of the cluster; blocks for `QUERY_SECONDS` at most.

    Raises:
        IsthmusError: no answer, or a refusal.
    """
    asked = ClusterClient(options)
    return str(asked.result(asked.admin.describe_cluster(request_timeout=QUERY_SECONDS)).cluster_id or "")


class ClusterClient:
    """A client of a cluster's administration, whose errors are errors of isthmus.

    Args:
        options: the options that reach the cluster.
        topic: the topic in errors; empty for the cluster.

    Raises:
        SecretError: a reference cannot be resolved.
        IsthmusError: the client cannot be created, e.g. because a certificate is unreadable.
    """

    def __init__(self, options: ClusterOptions, topic: str = "") -> None:
        self._topic = topic
        self._servers = options.bootstrap_servers
        self._errors: list[KafkaError] = []
        try:
            self.admin = AdminClient({**settings(options), "error_cb": self._errors.append})  # type: ignore[dict-item]
        except KafkaException as error:
            raise error_of(error.args[0], topic, self._servers) from None

    def result(self, answer: Future[Any]) -> Any:
        """The answer; blocks for `QUERY_SECONDS` at most.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        deadline = time.monotonic() + QUERY_SECONDS + 1
        while not answer.done() and time.monotonic() < deadline:
            self.admin.poll(_POLL_SECONDS)  # calls `error_cb`; after a failed login the answer would never complete
            refused = [each for each in self._errors if _is_unauthorized(each)]
            if refused:
                raise error_of(refused[-1], self._topic, self._servers)
        causes = [each for each in self._errors if each.code() in (KafkaError._SSL, KafkaError._AUTHENTICATION)]
        try:
            return answer.result(0)
        except KafkaException as error:
            raise error_of(causes[-1] if causes else error.args[0], self._topic, self._servers) from None
        except TimeoutError:
            if causes:
                raise error_of(causes[-1], self._topic, self._servers) from None
            what = f"topic '{self._topic}': " if self._topic else ""
            raise ConnectionLostError(f"{what}{self._servers} does not answer") from None


def _message_bytes(admin: AdminClient, topic: str) -> int:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        entry = admin.describe_configs([resource], request_timeout=QUERY_SECONDS)[resource].result(QUERY_SECONDS + 1)
        return int(entry["max.message.bytes"].value)
    except (KafkaException, TimeoutError, KeyError, ValueError, TypeError):
        return MESSAGE_BYTES  # a client that may write to a topic need not be allowed to read its settings


def error_of(error: KafkaError, topic: str, servers: str = "") -> IsthmusError:
    """Converts an error of librdkafka."""
    what = f"topic '{topic}': " if topic else ""
    text = scrub(f"{what}{error.str()} ({error.name()})" + (f", at {servers}" if servers else ""))
    if error.code() in _ABSENT:
        return EntityNotFoundError(f"{topic}{f' at {servers}' if servers else ''}")
    if _is_unauthorized(error):
        return UnauthorizedError(text)
    if error.code() in _LASTING:
        return KafkaFailureError(text)
    if error.code() in _COORDINATOR:
        return CoordinatorAwayError(text)
    return ConnectionLostError(text)


def _is_unauthorized(error: KafkaError) -> bool:
    """Whether a cluster refused the client. A broker that closes during a login, or a token service that fails, does not count."""
    if error.code() == KafkaError._AUTHENTICATION:
        return _CUT.search(error.str()) is None
    return error.code() in _UNAUTHORIZED


def may_pass(error: IsthmusError) -> bool:
    """Whether a retry may succeed."""
    return error.retryable


def refusal_of(error: KafkaError, topic: str) -> Refusal:
    """The refusal that an answer to a record means; a too large or invalid record is distinguished from a busy cluster."""
    code, text = error.code(), f"topic '{topic}': {error.str()}"
    if code in _TOO_LARGE:
        # The cluster's answer covers a whole batch: sending each record alone shows which is too large.
        return Refusal(RefusalKind.UNCLEAR, error.name(), text, "MessageTooLarge")
    if code in _OF_THE_MESSAGE:
        return Refusal(RefusalKind.UNCLEAR, error.name(), text)
    if _is_unauthorized(error) or code in _ABSENT or code in _LASTING:
        return Refusal(RefusalKind.FATAL, error.name(), text)
    if code in _UNKNOWN:
        return Refusal(RefusalKind.UNKNOWN, error.name(), text)
    return Refusal(RefusalKind.BLOCKED, error.name(), text)
