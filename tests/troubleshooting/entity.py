"""Cases of the page's section Connections and entities."""

from __future__ import annotations

import contextlib
import socket
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from azure.core.exceptions import ServiceRequestError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import EntityStatus, ServiceBusAdministrationClient

from isthmus.bridge.delivery_event import Disposition
from isthmus.broker.hub.ownership import Ownership
from isthmus.cli.app import create_app
from isthmus.connectors.amqp.system import SYSTEM as AMQP
from isthmus.connectors.checkpoint.blob_store import BlobStore
from isthmus.connectors.checkpoint.checkpoint import Checkpoint, GroupKey
from isthmus.connectors.eventgrid.option import PullOptions, read_source
from isthmus.connectors.eventgrid.source import EventGridPuller
from isthmus.connectors.iothub.system import IotHubs
from isthmus.connectors.kafka.spark.topic import Topic
from isthmus.connectors.listen.listener import enter
from isthmus.connectors.pull.lock_account import Lease
from isthmus.connectors.rabbitmq.administration import RabbitAdministration
from isthmus.connectors.rabbitmq.option import read_broker
from isthmus.connectors.rabbitmq.system import SYSTEM as RABBITMQ
from isthmus.connectors.servicebus.administration.client import administration_errors
from isthmus.connectors.static_administration import StaticAdministration
from isthmus.entities import Engine, QueueDescription, SessionQueue
from isthmus.errors import EntityNotFoundError
from isthmus.operations.address import CONNECTION_VARIABLE
from isthmus.store import MemoryJournal
from isthmus.testing.clock import ManualClock
from isthmus.topology.planning.change import Change
from troubleshooting.case import Stage, elsewhere, shows


@shows("cannot be reached")
def _unreachable(stage: Stage) -> None:
    with administration_errors("ewr"):
        raise ServiceRequestError("[Errno 110] Connection timed out")


# ---- at a served namespace, by the SDK


def _client(stage: Stage) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(stage.serve().connection_string, retry_total=0)


def _administration(stage: Stage) -> ServiceBusAdministrationClient:
    served = stage.serve()
    return ServiceBusAdministrationClient.from_connection_string(
        served.admin_connection_string, connection_verify=str(served.ca_file)
    )


def _reported(error: Exception) -> str:
    return " ".join(str(getattr(error, "message", error)).split())


def _entity(stage: Stage, *arguments: str) -> None:
    stage.patch.setenv(CONNECTION_VARIABLE, stage.serve().connection_string)
    create_app("entity")(args=["entity", *arguments], standalone_mode=False)


@shows("The messaging entity '…' could not be found.")
def _not_found(stage: Stage) -> None:
    _entity(stage, "show", "nowhere")


@shows("The messaging entity '…' exists already.")
def _exists(stage: Stage) -> None:
    _entity(stage, "create", "orders")


@shows("Error condition: amqp:client-error")
def _token_of_nothing(stage: Stage) -> str:
    """The SDK asks for a token of the entity first, and is refused that."""
    with _client(stage) as client, contextlib.ExitStack() as stack:
        try:
            stack.enter_context(client.get_queue_sender("nowhere"))
        except Exception as error:  # noqa: BLE001 - whatever the SDK makes of it
            return _reported(error)
    return ""


@shows("is currently disabled")
def _disabled(stage: Stage) -> str:
    with _administration(stage) as administration:
        queue = administration.create_queue("off")
        queue.status = EntityStatus.DISABLED
        administration.update_queue(queue)
    with _client(stage) as client, contextlib.ExitStack() as stack:
        try:
            stack.enter_context(client.get_queue_sender("off"))
        except Exception as error:  # noqa: BLE001 - whatever the SDK makes of it
            return _reported(error)
    return ""


@shows("It is not possible for an entity that requires sessions to create a non-sessionful message receiver")
def _sessionless(stage: Stage) -> str:
    with _client(stage) as client, contextlib.ExitStack() as stack:
        try:
            stack.enter_context(client.get_queue_receiver("sessions"))
        except Exception as error:  # noqa: BLE001 - whatever the SDK makes of it
            return _reported(error)
    return ""


@shows("The requested session '…' of '…' cannot be accepted.")
def _locked_session(stage: Stage) -> str:
    with _client(stage) as client, contextlib.ExitStack() as stack:
        with client.get_queue_sender("sessions") as sender:
            sender.send_messages(ServiceBusMessage("x", session_id="a"))
        stack.enter_context(client.get_queue_receiver("sessions", session_id=NEXT_AVAILABLE_SESSION))
        try:
            stack.enter_context(client.get_queue_receiver("sessions", session_id="a"))
        except Exception as error:  # noqa: BLE001 - whatever the SDK makes of it
            return _reported(error)
    return ""


@shows("The session lock was lost")
def _lost_session(stage: Stage) -> None:
    clock = ManualClock()
    engine = Engine(MemoryJournal(), clock, random_bytes=bytes)
    engine.create_queue("q", QueueDescription(requires_session=True, lock_duration_ms=5_000))
    queue = engine.receiver("q")
    assert isinstance(queue, SessionQueue)
    hold = queue.sessions.open_session("a")
    clock.advance(6_000)
    engine.tick()
    hold.renew()


# ---- other systems


@shows("were removed before they were read")
def _removed_records(stage: Stage) -> None:
    found = Topic.__new__(Topic)
    found._options, found._name = cast("Any", SimpleNamespace(bootstrap_servers="127.0.0.1:1")), "flights"
    found._may_miss = False
    found._consumer = cast("Any", SimpleNamespace(get_watermark_offsets=lambda *_, **__: (20, 50)))
    list(found.records(0, 10, 30))


elsewhere(
    "compaction removed them before they were read again",
    "tests/unit/connectors/kafka/consumer/test_removed.py::test_what_was_given_back_and_was_removed_is_reported_whatever_removed_it",
)
elsewhere(
    "were removed by the retention",
    "tests/interop/connector/test_eventhubs_port.py::test_a_checkpoint_that_has_expired_is_reported_with_the_range",
)


@shows("other writers change … all the time")
def _contended(stage: Stage) -> None:
    from azure.core.exceptions import ResourceModifiedError

    def refuse(*_: object, **__: object) -> None:
        raise ResourceModifiedError("412")

    blob = SimpleNamespace(
        upload_blob=refuse,
        set_blob_metadata=refuse,
        get_blob_properties=lambda: SimpleNamespace(etag="1", metadata={}),
    )
    key = "bm90LWEta2V5LWJ1dC1sb25n"
    stage.patch.setenv("STORAGE", f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={key}")
    store = BlobStore("https://a.blob.core.windows.net", "checkpoints", "env:STORAGE")
    stage.patch.setattr(store, "_client", SimpleNamespace(get_blob_client=lambda _: blob, close=lambda: None))
    store.write(GroupKey("ns", "host", "hub", "$Default"), {0: Checkpoint(7, "77")})


class _Receiver(NamedTuple):
    name: str
    epoch: int


@shows("with a higher epoch of")
def _epoch(stage: Stage) -> None:
    partition = cast("Any", SimpleNamespace(number=1, path="hub/Partitions/0"))
    ownership = Ownership()
    ownership.add(partition, "$Default", cast("Any", _Receiver("first", 2)))
    ownership.check(partition, "$Default", "second", 1)


@shows("the IoT hub has no consumer group")
def _iot_group(stage: Stage) -> None:
    hubs = IotHubs.__new__(IotHubs)

    def refuse(*_: object) -> None:
        raise EntityNotFoundError("audit")

    stage.patch.setattr(IotHubs, "views", lambda *_: {0: None})
    stage.patch.setattr(IotHubs, "reader", refuse)
    hubs.create_group("events", "audit")


@shows("RabbitMQ does not allow browsing a queue without taking messages")
def _rabbit_peek(stage: Stage) -> None:
    RABBITMQ.peek({}, "orders")


@shows("AMQP 1.0 does not report how many messages wait")
def _amqp_waiting(stage: Stage) -> None:
    AMQP.waiting({}, "orders", "")


@shows("exchange '…' is of type …, at which no binding matches everything")
def _exchange(stage: Stage) -> None:
    options = {"host": "127.0.0.1", "username": "u", "password": "env:PASSWORD", "management": "http://127.0.0.1:1"}
    administration = RabbitAdministration(read_broker(options))
    stage.patch.setattr(administration, "_call", lambda *_, **__: {"type": "direct"})
    administration.make(Change(alias="mq", action="create", kind="subscription", topic="flights", subscription="audit"))


@shows("cannot be created there")
def _not_made(stage: Stage) -> None:
    StaticAdministration("https://example.com").make(
        Change(alias="hook", action="create", kind="subscription", topic="flights", subscription="audit")
    )


@shows("give the subscription a dead-letter destination")
def _no_dead_letters(stage: Stage) -> None:
    options = read_source({"endpoint": "http://127.0.0.1:1", "entity": "flights", "subscription": "sub"})
    assert isinstance(options, PullOptions)
    lease = Lease("1", "token", 60)
    EventGridPuller(options).set_aside(lease, b"", Disposition("dead-letter", "ValidationFailed", "at /a"))


@shows("nothing can be listened for on")
def _port_in_use(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = {
            "delivery": "push", "entity": "flights", "listen": f"127.0.0.1:{taken.getsockname()[1]}", "spool": str(stage.folder),
            "auth": "none",
        }  # fmt: skip
        made = read_source(options)
        assert not isinstance(made, PullOptions)
        enter(made, cast("Any", None))
