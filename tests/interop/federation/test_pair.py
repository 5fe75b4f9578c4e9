"""Two served namespaces as a pair, through azure-servicebus, which knows the alias only."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusError
from azure.servicebus.management import (
    AuthorizationRule,
    CorrelationRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
)

from harness.client.sdk_client import bodies, receive
from harness.fixture.paired import Paired, paired
from isthmus.errors import NotAllowedError, UnauthorizedError
from isthmus.message import DUPLICATE_KEYS
from isthmus.message import name as names
from isthmus.operations.peek import messages
from isthmus.pairing.failover import mover
from isthmus.pairing.pair_error import PairBrokenError
from isthmus.pairing.pair_session import PairSession
from isthmus.topology.file.source import load
from isthmus.transport import Sender

# azure-servicebus leaks the socket of a connection that is cut while it opens; any later test of the module may find it.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

CONFIG = """\
queues:
  orders: {requires_duplicate_detection: true}
  later: {}
  sessions: {requires_session: true}
topics:
  flights:
    subscriptions:
      boards: {}
"""
# A loaded machine; the bound of two seconds is measured by hand (docs/how-to/recover-from-a-disaster.md).
PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paired]:
    with paired(tmp_path_factory.mktemp("pair"), CONFIG) as made:
        yield made


@pytest.fixture
def pair(namespaces: Paired) -> Paired:
    """The pair, with ewr active, whatever the test before has left."""
    if namespaces.is_created and (namespaces.state["phase"] != "steady" or namespaces.state["active"] != "ewr"):
        namespaces.verb(
            "failover", *(["--force"] if namespaces.state["phase"] != "steady" else ["--leave", "--consume-for", "0s"])
        )
    return namespaces


def everything(client: ServiceBusAdministrationClient) -> dict[str, object]:
    """What a namespace holds, as far as tests of this file make it."""
    found: dict[str, object] = {}
    for queue in client.list_queues():
        if not queue.name.startswith("isthmus."):
            rules = [(each.key_name, each.primary_key, each.secondary_key) for each in queue.authorization_rules or ()]
            forward = (queue.forward_to or "").rpartition("/")[2]
            found[queue.name] = (queue.lock_duration, queue.requires_session, queue.user_metadata, forward, rules)
    for topic in client.list_topics():
        found[topic.name] = topic.default_message_time_to_live
        for subscription in client.list_subscriptions(topic.name):
            path = f"{topic.name}/{subscription.name}"
            found[path] = subscription.max_delivery_count
            for rule in client.list_rules(topic.name, subscription.name):
                found[f"{path}/{rule.name}"] = (vars(rule.filter), vars(rule.action) if rule.action else None)
    return found


def test_metadata_comes_in_step(pair: Paired) -> None:
    """Created, changed and deleted; correlation filters, parameters, actions and keys too."""
    ewr, jfk = pair.administration("ewr"), pair.administration("jfk")
    with ewr, jfk:
        jfk.create_queue("theirs")
        dry = pair.verb("create", "--dry-run")
        assert "+ queue orders" in dry["changes"]
        assert dry["only_at_standby"] == ["theirs"]
        with pytest.raises(ResourceNotFoundError):
            jfk.get_queue("orders")
        assert pair.verb("create")["in_step"]
        key = "cGFpcmVkIHdpdGggYSBrZXkgb2YgMzIgYnl0ZXMhISE="
        rule = AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            claim_type="SharedAccessKey",
            claim_value="None",
            rights=["Send"],
            key_name="partner",
            primary_key=key,
            secondary_key=key,
        )
        ewr.create_queue("target")
        ewr.create_queue("front", forward_to="target", authorization_rules=[rule], user_metadata="of contoso")
        ewr.create_subscription("flights", "big")
        ewr.create_rule("flights", "big", "correlated", filter=CorrelationRuleFilter(label="a", properties={"n": 5}))
        ewr.create_rule(
            "flights",
            "big",
            "sql",
            filter=SqlRuleFilter("size > @least", {"@least": 5}),
            action=SqlRuleAction("SET big = 1"),
        )
        ewr.delete_rule("flights", "big", "$Default")
        orders = ewr.get_queue("orders")
        orders.lock_duration = timedelta(seconds=17)
        ewr.update_queue(orders)
        drift = pair.verb("status", code=1)["drift"]
        assert "~ queue orders: LockDuration 1m → 17s" in drift
        assert "+ subscription flights/Subscriptions/big: rule correlated; rule sql" in drift
        assert pair.verb("sync")["in_step"]
        entities = everything(jfk)
        assert entities.pop("theirs")
        assert entities == everything(ewr)
        assert pair.verb("status")["drift"] == []
        assert pair.verb("sync")["done"] == []

        ewr.delete_queue("front")
        ewr.delete_queue("target")
        ewr.delete_subscription("flights", "big")
        assert sorted(pair.verb("sync")["done"]) == [
            "- queue front",
            "- queue target",
            "- subscription flights/Subscriptions/big",
        ]
        entities = everything(jfk)
        assert entities.pop("theirs")
        assert entities == everything(ewr)
        assert key not in pair.log_file.read_text() if pair.log_file.exists() else True


def test_what_holds_messages_is_not_deleted_unasked(pair: Paired) -> None:
    ewr, jfk = pair.administration("ewr"), pair.administration("jfk")
    with ewr, jfk:
        ewr.create_queue("held")
        pair.verb("create")
        with pair.client("jfk") as client, client.get_queue_sender("held") as sender:
            sender.send_messages(ServiceBusMessage("kept"))
        ewr.delete_queue("held")
        reported = pair.verb("sync", code=1)
        assert reported["failed"][0]["error"]["message"].startswith("jfk/held contains 1 messages")
        assert jfk.get_queue("held").status == "Active"
        assert pair.verb("sync", "--delete-messages")["in_step"]
        with pytest.raises(ResourceNotFoundError):
            jfk.get_queue("held")


class Load:
    """An application that knows the alias only: sends numbers one after the other until each is acknowledged, and receives.

    It prefetches: without, azure-servicebus releases messages that arrive between two calls, and they come again behind later ones.

    Attributes:
        sent: acknowledged, in order.
        received: completed, in order.
        events: time and kind of each.
    """

    def __init__(self, pair: Paired, queue: str) -> None:
        self._pair = pair
        self._queue = queue
        self._stop = threading.Event()
        self.sent: list[str] = []
        self.received: list[str] = []
        self.sent_at: list[float] = []
        self.received_at: list[float] = []
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def _send(self) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                with self._pair.client() as client, client.get_queue_sender(self._queue) as sender:
                    while not self._stop.is_set():
                        sender.send_messages(ServiceBusMessage(str(number), message_id=str(number)))
                        self.sent.append(str(number))
                        self.sent_at.append(time.monotonic())
                        number += 1
            except ServiceBusError:
                time.sleep(0.05)

    def _receive(self) -> None:
        quiet = 0
        while quiet < 3:
            try:
                with (
                    self._pair.client() as client,
                    client.get_queue_receiver(self._queue, prefetch_count=20) as receiver,
                ):
                    while quiet < 3:
                        found = receiver.receive_messages(max_message_count=20, max_wait_time=1)
                        for message in found:
                            receiver.complete_message(message)
                            self.received.append(str(message))
                            self.received_at.append(time.monotonic())
                        quiet = 0 if found or not self._stop.is_set() else quiet + 1
            except ServiceBusError:
                time.sleep(0.05)

    def wait_more(self, count: int) -> None:
        """Wait until so many more have been received, of those that are sent from now on."""
        target, deadline = len(self.sent) + count, time.monotonic() + PATIENCE_SECONDS
        while len(self.received) < target:
            assert time.monotonic() < deadline, (len(self.sent), len(self.received))
            time.sleep(0.02)


def test_a_planned_fail_over_under_load_loses_and_doubles_nothing(pair: Paired) -> None:
    """There and back; order kept; the application reconnects by itself."""
    pair.verb("create")
    pair.run()
    try:
        with Load(pair, "orders") as load:
            load.wait_more(20)
            first = pair.verb("failover", "--consume-for", "30s")
            assert (first["active"], first["left"]) == ("jfk", {})
            load.wait_more(20)
            second = pair.verb("failover", "--consume-for", "30s")
            assert (second["active"], second["epoch"], second["left"]) == ("ewr", first["epoch"] + 1, {})
            load.wait_more(20)
    finally:
        pair.stop()
    assert len(load.sent) > 60
    assert load.received == load.sent


def test_what_is_not_received_is_moved(pair: Paired) -> None:
    """Active and scheduled messages, sessions, lifetimes; in both directions."""
    pair.verb("create")
    due = datetime.now(UTC) + timedelta(days=1)
    with pair.client("ewr") as client:
        with client.get_queue_sender("later") as sender:
            sender.send_messages(
                [ServiceBusMessage(str(number), time_to_live=timedelta(hours=1)) for number in range(300)]
            )
            sender.schedule_messages(ServiceBusMessage("tomorrow", application_properties={"n": 1}), due)
        with client.get_queue_sender("sessions") as sender:
            sender.send_messages([ServiceBusMessage(f"{number}", session_id="ab"[number % 2]) for number in range(20)])
    with pair.client("ewr") as client, client.get_topic_sender("flights") as sender:
        sender.schedule_messages(ServiceBusMessage("tomorrow"), due)
    reported = pair.verb("failover", "--consume-for", "0s")
    assert (reported["active"], reported["moved"], reported["left"]) == ("jfk", 322, {})
    with (
        pytest.raises(MessagingEntityDisabledError),
        pair.client("ewr", retry_total=0) as client,
        client.get_queue_sender("later") as sender,
    ):
        sender.send_messages(ServiceBusMessage("too late"))
    with pair.administration("jfk") as jfk:
        assert jfk.get_topic_runtime_properties("flights").scheduled_message_count == 1
    assert pair.verb("failover", "--consume-for", "0s")["moved"] == 322
    with pair.client("ewr") as client:
        with client.get_queue_receiver("later", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
            peeked = [each for each in receiver.peek_messages(max_message_count=400) if each.scheduled_enqueue_time_utc]
            assert [str(each) for each in peeked] == ["tomorrow"]
            assert peeked[0].scheduled_enqueue_time_utc == due.replace(microsecond=due.microsecond // 1000 * 1000)
            assert peeked[0].application_properties == {b"n": 1}
            found = receive(receiver, 300)
            assert bodies(found) == [str(number) for number in range(300)]
            assert all(
                timedelta(minutes=50) < each.time_to_live < timedelta(hours=1) for each in found if each.time_to_live
            )
        for session in "ab":
            with client.get_queue_receiver(
                "sessions", session_id=session, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
            ) as receiver:
                assert bodies(receive(receiver, 10)) == [str(each) for each in range(20) if "ab"[each % 2] == session]


def dead_letter(client: ServiceBusClient, count: int, *entity: str) -> None:
    get = client.get_subscription_receiver if len(entity) > 1 else client.get_queue_receiver
    with get(*entity) as receiver:
        for message in receive(receiver, count):
            receiver.dead_letter_message(message, reason="Unpaid", error_description=f"of {message}")


def dead_letters(client: ServiceBusClient, *entity: str) -> list[ServiceBusReceivedMessage]:
    get = client.get_subscription_receiver if len(entity) > 1 else client.get_queue_receiver
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with get(*entity, sub_queue=ServiceBusSubQueue.DEAD_LETTER, receive_mode=mode) as receiver:
        found: list[ServiceBusReceivedMessage] = []
        while more := receiver.receive_messages(max_message_count=100, max_wait_time=1):
            found += more
        return found


def test_dead_letters_are_moved_with_their_reason_and_deferred_messages_are_counted(pair: Paired) -> None:
    pair.verb("create")
    with pair.client("ewr") as client:
        with client.get_queue_sender("later") as sender:
            sender.send_messages(
                [ServiceBusMessage(f"d{number}", time_to_live=timedelta(hours=1)) for number in range(250)]
            )
        dead_letter(client, 250, "later")
        with client.get_topic_sender("flights") as sender:
            sender.send_messages(ServiceBusMessage("s0"))
        dead_letter(client, 1, "flights", "boards")
        with client.get_queue_sender("later") as sender:
            sender.send_messages(ServiceBusMessage("deferred"))
        with client.get_queue_receiver("later") as receiver:
            [message] = receive(receiver, 1)
            receiver.defer_message(message)
    reported = pair.verb("failover", "--consume-for", "0s")
    assert (reported["active"], reported["left"]) == ("jfk", {})
    assert (reported["moved_dead_letters"], reported["left_dead_letters"]) == (251, {})
    assert reported["left_deferred"] == {"later": 1}
    with pair.client("jfk") as client:
        found = dead_letters(client, "later")
        assert bodies(found) == [f"d{number}" for number in range(250)]
        assert {each.dead_letter_reason for each in found} == {"Unpaid"}
        assert found[7].dead_letter_error_description == "of d7"
        assert found[7].dead_letter_source == "later"
        assert [each.dead_letter_reason for each in dead_letters(client, "flights", "boards")] == ["Unpaid"]
    assert pair.verb("failover", "--consume-for", "0s")["active"] == "ewr"
    with pair.client("ewr") as client, client.get_queue_receiver("later") as receiver:
        [message] = receiver.receive_deferred_messages(message.sequence_number)
        receiver.complete_message(message)
        assert dead_letters(client, "later") == []


def test_only_who_may_manage_puts_messages_into_a_dead_letter_queue(pair: Paired) -> None:
    for is_application, asked, error in (
        (False, (), NotAllowedError),
        (True, (DUPLICATE_KEYS, names.RESTORES), UnauthorizedError),
    ):
        client = pair.connected("ewr", "later", is_application=is_application)
        try:
            with pytest.raises(error):
                Sender(client, "later/$DeadLetterQueue", asked).wait_ready()
        finally:
            client.close(1.0)


def test_what_is_moved_again_after_a_kill_is_there_once(pair: Paired) -> None:
    """Killed between the acknowledgement of the copies and the removal of the messages; there, back, and there again."""
    queue = "solo"  # open at both, whichever member is fenced
    for alias in ("ewr", "jfk"):
        with pair.administration(alias) as client:
            client.create_queue(queue)
    with pair.client("ewr") as client, client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(5)])
    for old, new in (("ewr", "jfk"), ("jfk", "ewr"), ("ewr", "jfk")):
        source, target = pair.connected(old, queue), pair.connected(new, queue)
        try:
            killed = mover._Pass(source, target, queue)
            assert killed._send(list(messages(source, queue))) == [True] * 5
            killed.close()
            assert mover.move(source, target, queue, in_sessions=False) == (5, "")
        finally:
            source.close(1.0)
            target.close(1.0)
    with (
        pair.client("jfk") as client,
        client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        found: list[str] = []
        while page := receiver.receive_messages(max_message_count=50, max_wait_time=3):
            found += bodies(page)
        assert found == [str(n) for n in range(5)]
    for alias in ("ewr", "jfk"):
        with pair.administration(alias) as client:
            client.delete_queue(queue)


def test_scheduled_messages_that_come_due_while_they_are_moved_are_there_once(pair: Paired) -> None:
    queue = "due"  # open at both, whichever member is fenced
    for alias in ("ewr", "jfk"):
        with pair.administration(alias) as client:
            client.create_queue(queue)
    begin = datetime.now(UTC) + timedelta(seconds=2)
    with pair.client("ewr") as client, client.get_queue_sender(queue) as sender:
        for number in range(100):
            # Between them others, so that each is removed by a request of its own.
            sender.schedule_messages(ServiceBusMessage(f"due {number}"), begin + timedelta(milliseconds=20 * number))
            sender.send_messages(ServiceBusMessage(f"sent {number}"))
    time.sleep(max(0.0, (begin - datetime.now(UTC)).total_seconds()))
    source, target = pair.connected("ewr", queue), pair.connected("jfk", queue)
    try:
        with pair.administration("ewr") as client:
            while client.get_queue_runtime_properties(queue).total_message_count:
                mover.move(source, target, queue, in_sessions=False)
    finally:
        source.close(1.0)
        target.close(1.0)
    found: list[str] = []
    with (
        pair.client("jfk") as client,
        client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        while page := receiver.receive_messages(max_message_count=500, max_wait_time=3):
            found += bodies(page)
    assert sorted(found) == sorted(f"{what} {number}" for what in ("due", "sent") for number in range(100))
    for alias in ("ewr", "jfk"):
        with pair.administration(alias) as client:
            client.delete_queue(queue)


def test_what_is_in_a_subscription_brings_a_planned_one_back(pair: Paired) -> None:
    pair.verb("create")
    with pair.client("ewr") as client, client.get_topic_sender("flights") as sender:
        sender.send_messages(ServiceBusMessage("unread"))
    reported = pair.verb("failover", "--consume-for", "0s", code=1)
    assert "flights/Subscriptions/boards (1)" in reported["error"]["message"]
    assert pair.state["active"] == "ewr"
    with pair.client("ewr") as client, client.get_topic_sender("flights") as sender:
        sender.send_messages(ServiceBusMessage("open again"))
    with (
        pair.client("ewr") as client,
        client.get_subscription_receiver(
            "flights", "boards", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
        ) as receiver,
    ):
        assert bodies(receive(receiver, 2)) == ["unread", "open again"]


def test_force_switches_and_says_what_may_be_lost(pair: Paired) -> None:
    pair.verb("create")
    with pair.client("ewr") as client, client.get_queue_sender("later") as sender:
        sender.send_messages(ServiceBusMessage("left behind"))
    pair.run()
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while pair.state["seen"].get("later", {}).get("active") != 1:
            assert time.monotonic() < deadline, pair.log_file.read_text()
            time.sleep(0.1)
        reported = pair.verb("failover", "--force")
    finally:
        pair.stop()
    assert reported["may_be_lost"]["later"]["active"] == 1
    assert (reported["active"], reported["leads_to"], reported["fence"]) == ("jfk", "jfk", "closed")
    # What was left behind comes back with the member: it is older than what is moved there.
    with pair.client("jfk") as client, client.get_queue_sender("later") as sender:
        sender.send_messages(ServiceBusMessage("newer"))
    assert pair.verb("failover", "--consume-for", "0s")["active"] == "ewr"
    with (
        pair.client("ewr") as client,
        client.get_queue_receiver("later", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        assert bodies(receive(receiver, 2)) == ["left behind", "newer"]


def test_a_broken_pair_leaves_both_usable(pair: Paired) -> None:
    pair.verb("create")
    pair.verb("failover", "--force")
    assert pair.verb("break") == {"pair": "contoso", "broken": True, "was_active": "jfk"}
    for alias in ("ewr", "jfk"):
        with pair.client(alias) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("usable"))
        with pair.administration(alias) as client:
            assert not [each.name for each in client.list_queues() if each.name.startswith("isthmus.pair")]
    reported = pair.verb("status", code=1)
    assert "isthmus pair create contoso" in reported["error"]["message"]


def test_a_pair_that_is_broken_in_the_middle_of_a_round_elsewhere_stays_broken(
    pair: Paired, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.verb("create")
    pair.verb("failover", "--force")
    for name, value in pair.environment.items():
        monkeypatch.setenv(name, value)
    federation = load(str(pair.file))
    with PairSession(federation, federation.pairs["contoso"], tmp_path) as elsewhere:
        elsewhere.create()
        state = elsewhere.keeper.follow(elsewhere.state())
        assert (state.active, state.is_told) == ("jfk", True)
        pair.verb("break")
        with pytest.raises(PairBrokenError):
            elsewhere.keeper.settle(state)
        with pytest.raises(PairBrokenError):  # it would close what is open now
            elsewhere.keeper.make(state, elsewhere.keeper.compare(state))
        with pytest.raises(PairBrokenError):
            elsewhere.sync()
    for alias in ("ewr", "jfk"):
        with pair.client(alias) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("usable"))
        with pair.administration(alias) as admin:
            assert not [each.name for each in admin.list_queues() if each.name.startswith("isthmus.pair")]
