"""What the SDK raises at real faults, and what the client library takes it for."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from harness.client.client_region import Region, eventually, region
from isthmus.client import Failure, classify
from isthmus.client.endpoint import Endpoint
from isthmus.client.send import lane as lane_module
from isthmus.client.send.lane import Attempt, Lane
from isthmus.client.send.parcel import Parcel

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CONFIG = """
queues:
  orders: {}
  closed: {status: Disabled}
  sessions: {requires_session: true}
  small: {max_size_in_megabytes: 1}
  deleted: {}
"""


@pytest.fixture(scope="module")
def served() -> Iterator[Region]:
    with region(CONFIG) as here:
        yield here


@pytest.fixture
def here(served: Region) -> Iterator[Region]:
    served.mend()
    yield served
    served.mend()


@pytest.fixture
def lane(here: Region) -> Iterator[Callable[..., Lane]]:
    made: list[Lane] = []

    def open_lane(entity: str = "orders", connection: str = "") -> Lane:
        made.append(Lane(Endpoint.of(connection or here.connection_string), entity))
        return made[-1]

    yield open_lane
    for each in made:
        each.close()


def sent(lane: Lane, body: bytes = b"x", timeout: float = 20.0) -> Attempt:
    return lane.send(Parcel.of(ServiceBusMessage(body)), timeout)


@pytest.mark.parametrize(
    ("entity", "body", "failure"),
    [
        (
            "nothing-here",
            b"x",
            Failure.FORBIDDEN,
        ),  # as Azure, which refuses the token of an entity that it does not know
        ("closed", b"x", Failure.DISABLED),
        ("sessions", b"x", Failure.REFUSED),
        ("orders", b"x" * 2_000_000, Failure.REFUSED),
    ],
)
def test_errors_of_the_entity_and_of_the_message(
    lane: Callable[..., Lane], entity: str, body: bytes, failure: Failure
) -> None:
    attempt = sent(lane(entity), body)
    assert attempt.failure is failure, attempt.error
    assert attempt.is_definite


def test_what_waited_behind_an_opening_that_was_refused_gets_the_refusal(lane: Callable[..., Lane]) -> None:
    """Otherwise a sender would take the region for lost."""
    opened = lane("closed")
    opening = opened.open_soon()
    attempt = sent(opened)
    assert opening.result(20).failure is attempt.failure is Failure.DISABLED
    assert attempt.is_definite


def test_a_full_entity(lane: Callable[..., Lane]) -> None:
    opened = lane("small")
    attempts = [sent(opened, b"x" * 100_000) for _ in range(15)]
    assert attempts[0].ok
    assert attempts[-1].failure is Failure.FULL


def test_an_idle_connection_is_kept_and_opened_again_once_it_was_lost(
    lane: Callable[..., Lane], here: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "LISTEN_SECONDS", 0.05)
    opened = lane("orders")
    assert sent(opened).ok
    time.sleep(0.5)
    assert opened.is_open
    attempt = sent(opened)
    assert attempt.ok
    here.proxy.cut()
    eventually(lambda: not opened.is_open)
    assert sent(opened).ok


@pytest.mark.parametrize("part", ["SharedAccessKey=", "SharedAccessKeyName="])
def test_a_wrong_key(lane: Callable[..., Lane], here: Region, part: str) -> None:
    wrong = here.connection_string.replace(part, f"{part}x")
    assert sent(lane(connection=wrong)).failure is Failure.FORBIDDEN


@pytest.mark.parametrize("host", ["nothing-here.invalid", "127.0.0.1:1"])
def test_a_name_that_does_not_resolve_and_a_closed_port(lane: Callable[..., Lane], here: Region, host: str) -> None:
    elsewhere = re.sub(r"sb://[^/]*/", f"sb://{host}/", here.connection_string)
    attempt = sent(lane(connection=elsewhere))
    assert attempt.failure is Failure.GONE
    assert attempt.is_definite


def test_a_connection_that_is_cut_may_have_sent_and_one_that_cannot_be_made_has_not(
    lane: Callable[..., Lane], here: Region
) -> None:
    opened = lane()
    assert sent(opened).ok
    here.cut()
    attempt = sent(opened)
    assert attempt.failure is Failure.GONE
    assert not attempt.is_definite
    assert attempt.was_open
    again = sent(opened)
    assert again.failure is Failure.GONE
    assert again.is_definite
    here.mend()
    assert sent(opened).ok


def test_a_namespace_that_hangs_is_given_up_in_time_also_while_it_is_connected_to(
    lane: Callable[..., Lane], here: Region
) -> None:
    """I4 of `lane`: by itself the SDK waits for ever for a peer that accepts the connection and says nothing."""
    opened, fresh = lane(), lane()
    assert sent(opened).ok
    with here.frozen():
        attempt = sent(opened, timeout=0.5)
        assert attempt.failure is Failure.UNKNOWN
        assert not attempt.is_definite
        first = sent(fresh, timeout=0.5)
        assert first.failure is Failure.UNKNOWN
        assert first.is_definite, "nothing can have been sent before the link was open"
    assert sent(opened).ok
    assert sent(fresh).ok


def test_a_deleted_entity(lane: Callable[..., Lane], here: Region) -> None:
    opened = lane("deleted")
    assert sent(opened).ok
    with ServiceBusAdministrationClient.from_connection_string(
        here.namespace.admin_connection_string, connection_verify=str(here.namespace.ca_file)
    ) as client:
        client.delete_queue("deleted")
    assert sent(opened).failure in (Failure.MISSING, Failure.GONE)
    assert sent(opened).failure in (Failure.MISSING, Failure.FORBIDDEN)


def test_what_is_no_message(here: Region) -> None:
    with (
        ServiceBusClient.from_connection_string(here.connection_string) as client,
        client.get_queue_sender("orders") as sender,
    ):
        with pytest.raises(TypeError) as raised:
            sender.send_messages(42)  # type: ignore[arg-type]
        assert classify(raised.value) is Failure.MISUSE
