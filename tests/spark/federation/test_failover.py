"""Active-passive and spillover in one run, with the service's own SDK as the application."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

from isthmus.testing.federation import FederationProcess

pytestmark = pytest.mark.spark

TASKS = """\
  bookings: {pattern: active-passive, topic: bookings, primary: ewr, secondary: jfk, failover_within: 30s, audit: 1d}
  payments: {pattern: spillover, queue: payments, members: [ewr, jfk], deadline: 60s, reasons: [max-deliveries, expired, Declined]}
  quick: {pattern: spillover, queue: quick, members: [ewr, jfk], deadline: 2s}
"""
DEADLINE_SECONDS = 60
# A spilled message is at the pair within 2 s; this is for a machine that does other things too.
PATIENCE_SECONDS = 30


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path_factory.mktemp("failover"), written=TASKS) as opened:
        run = opened.run("--retry-first", "1", "--retry-limit", "2")
        run.wait_phase(("waiting", "moving"))
        yield opened


def client(federation: FederationProcess, alias: str) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(federation.namespaces[alias].connection_string)


def send(federation: FederationProcess, alias: str, entity: str, *messages: ServiceBusMessage) -> None:
    with client(federation, alias) as opened, opened.get_queue_sender(entity) as sender:
        sender.send_messages(list(messages))


def receive(
    federation: FederationProcess, alias: str, queue: str, *, then: str = "complete", reason: str = "Declined"
) -> ServiceBusReceivedMessage:
    """The next message of a queue, settled as asked."""
    with client(federation, alias) as opened, opened.get_queue_receiver(queue) as receiver:
        (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=PATIENCE_SECONDS)
        if then == "complete":
            receiver.complete_message(message)
        else:
            receiver.dead_letter_message(message, reason=reason, error_description=f"{reason} by the test")
        return message


def text(message: ServiceBusReceivedMessage, name: str) -> str:
    value = (message.application_properties or {}).get(name.encode())
    return value.decode() if isinstance(value, bytes) else str(value)


def count(federation: FederationProcess, alias: str, queue: str) -> int:
    with client(federation, alias) as opened, opened.get_queue_receiver(queue) as receiver:
        return len(receiver.peek_messages(max_message_count=100))


def test_what_fails_is_tried_once_at_the_pair_and_then_parked(federation: FederationProcess) -> None:
    sent = time.monotonic()
    send(federation, "ewr", "payments", ServiceBusMessage("a", message_id="a", application_properties={"amount": 7}))
    receive(federation, "ewr", "payments", then="dead-letter")
    began = time.monotonic()
    copy = receive(federation, "jfk", "payments", then="dead-letter", reason="Declined")
    assert time.monotonic() - began < PATIENCE_SECONDS
    assert (copy.message_id, bytes(next(iter(copy.body)))) == ("a", b"a")
    assert text(copy, "amount") == "7"
    assert text(copy, "isthmus-payments-spilled") == "1"
    assert text(copy, "repl-dead-letter-reason") == "Declined"
    assert text(copy, "repl-dead-letter-description") == "Declined by the test"
    assert text(copy, "repl-dead-letter-source") == "payments"
    assert copy.dead_letter_reason is None
    assert copy.time_to_live is not None
    left = copy.time_to_live.total_seconds()
    # A queue's DefaultMessageTimeToLive bounds what is left of the deadline.
    assert left == DEADLINE_SECONDS / 2 or DEADLINE_SECONDS - (time.monotonic() - sent) - 1 < left < DEADLINE_SECONDS
    parked = receive(federation, "jfk", "payments-parked")
    assert (parked.message_id, parked.dead_letter_reason) == ("a", "Declined")
    assert text(parked, "repl-dead-letter-reason") == "Declined"
    assert count(federation, "ewr", "payments") == 0
    assert count(federation, "ewr", "payments-parked") == 0


def test_what_expires_and_what_is_abandoned_too_often_spills(federation: FederationProcess) -> None:
    sent = time.monotonic()
    send(federation, "jfk", "payments", ServiceBusMessage("b", message_id="b", time_to_live=timedelta(seconds=1)))
    copy = receive(federation, "ewr", "payments")
    assert (copy.message_id, text(copy, "repl-dead-letter-reason")) == ("b", "TTLExpiredException")
    assert copy.time_to_live is not None
    assert 1 < copy.time_to_live.total_seconds() < DEADLINE_SECONDS
    assert time.monotonic() - sent < DEADLINE_SECONDS
    send(federation, "jfk", "payments", ServiceBusMessage("c", message_id="c"))
    with client(federation, "jfk") as opened, opened.get_queue_receiver("payments") as receiver:
        for _ in range(10):
            (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=PATIENCE_SECONDS)
            receiver.abandon_message(message)
    copy = receive(federation, "ewr", "payments")
    assert (copy.message_id, text(copy, "repl-dead-letter-reason")) == ("c", "MaxDeliveryCountExceeded")


def test_any_other_reason_is_parked_at_once(federation: FederationProcess) -> None:
    send(federation, "ewr", "payments", ServiceBusMessage("d", message_id="d", time_to_live=timedelta(seconds=30)))
    receive(federation, "ewr", "payments", then="dead-letter", reason="Fraud")
    parked = receive(federation, "ewr", "payments-parked")
    assert (parked.message_id, parked.dead_letter_reason) == ("d", "Fraud")
    assert parked.time_to_live is None or parked.time_to_live > timedelta(days=40)
    assert count(federation, "jfk", "payments") == 0


def test_what_is_stranded_in_a_namespace_that_cannot_be_reached_moves_when_it_returns(
    federation: FederationProcess,
) -> None:
    send(federation, "jfk", "payments", ServiceBusMessage("e", message_id="e", time_to_live=timedelta(seconds=2)))
    send(federation, "ewr", "payments", ServiceBusMessage("f", message_id="f"))
    federation.namespaces["jfk"].kill()
    receive(federation, "ewr", "payments", then="dead-letter")
    send(federation, "ewr", "quick", ServiceBusMessage("g", message_id="g"))
    time.sleep(4)
    federation.namespaces["jfk"].start()
    assert receive(federation, "ewr", "payments").message_id == "e"
    assert receive(federation, "jfk", "payments").message_id == "f"
    late = receive(federation, "ewr", "quick-parked")
    assert (late.message_id, late.dead_letter_reason) == ("g", "DeadlinePassed")
    assert text(late, "repl-dead-letter-reason") == "TTLExpiredException"
    for alias in ("ewr", "jfk"):
        assert count(federation, alias, "payments") == 0
        assert count(federation, alias, "payments-parked") == 0


def test_the_secondary_holds_the_window_of_a_failover(federation: FederationProcess) -> None:
    messages = [
        ServiceBusMessage("m", message_id=f"p-{number}", time_to_live=timedelta(seconds=40) if number == 3 else None)
        for number in range(5)
    ]
    with client(federation, "jfk") as opened, opened.get_topic_sender("bookings") as sender:
        sender.send_messages(ServiceBusMessage("m", message_id="local"))
    with client(federation, "ewr") as opened, opened.get_topic_sender("bookings") as sender:
        sender.send_messages(messages)
    limit = time.monotonic() + PATIENCE_SECONDS
    copies: list[ServiceBusReceivedMessage] = []
    with client(federation, "jfk") as opened, opened.get_subscription_receiver("bookings", "audit") as receiver:
        while len(copies) < 6 and time.monotonic() < limit:
            copies = receiver.peek_messages(max_message_count=20, sequence_number=1)
            time.sleep(0.05)
    assert [each.message_id for each in copies] == ["local", *(f"p-{number}" for number in range(5))]
    left = [each.time_to_live for each in copies[1:] if each.time_to_live is not None]
    # What is left of twice failover_within, or of the shorter life that the publisher gave.
    assert all(timedelta(seconds=60 - PATIENCE_SECONDS) < each <= timedelta(seconds=60) for each in left[:3] + left[4:])
    assert timedelta(seconds=40 - PATIENCE_SECONDS) < left[3] <= timedelta(seconds=40)
    with client(federation, "ewr") as opened, opened.get_subscription_receiver("bookings", "audit") as receiver:
        assert [each.message_id for each in receiver.peek_messages(max_message_count=20)] == [
            f"p-{number}" for number in range(5)
        ]
