"""A pair whose processes are killed in each phase, and whose active member is frozen, killed and comes back."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusError

from harness.client.sdk_client import bodies, receive
from harness.fixture.paired import Paired, paired

# The client leaves a socket to the garbage collector when a connection is cut while it opens.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
PATIENCE_SECONDS = 90.0
CONFIG = """\
queues:
  orders: {}
  second: {}
  ring: {forward_to: second}
topics:
  flights:
    subscriptions:
      boards: {}
"""


@pytest.fixture
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paired]:
    with paired(tmp_path_factory.mktemp("pair"), CONFIG) as made:
        yield made


def send(client: ServiceBusClient, *texts: str) -> None:
    with client.get_queue_sender("orders") as sender:
        sender.send_messages([ServiceBusMessage(text, message_id=text) for text in texts])


def drain(pair: Paired, alias: str, count: int) -> list[str]:
    """So many messages of a queue, and whatever is there beyond them."""
    with (
        pair.client(alias) as client,
        client.get_queue_receiver("orders", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        found: list[str] = bodies(receive(receiver, count))
        while more := bodies(receiver.receive_messages(max_message_count=100, max_wait_time=1)):
            found += more
        return found


def until(condition: object, text: object = "") -> None:
    """Wait for a condition."""
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, text
        time.sleep(0.02)


# A round trip of kills: each phase is killed on its first appearance on disk, first there, then back.
@pytest.mark.parametrize("phases", [["stopping", "consuming", "moving", "fencing", "opening"]])
def test_a_fail_over_killed_in_each_phase_ends_as_if_it_had_not_been(pair: Paired, phases: list[str]) -> None:
    """Nothing is lost or doubled, order is kept."""
    pair.verb("create")
    active, sent = "ewr", [str(number) for number in range(400)]
    with pair.client("ewr") as client:
        send(client, *sent)
    for phase in phases:
        target = "jfk" if active == "ewr" else "ewr"
        process = pair.start("failover", "--consume-for", "200ms")
        until(lambda: process.poll() is not None or pair.state["phase"] == phase, phase)  # noqa: B023 - called at once
        process.kill()
        process.communicate()
        state = pair.state
        assert state["phase"] in (phase, "steady") or phases.index(state["phase"]) > phases.index(phase)
        if state["active"] != target:
            reported = pair.verb("failover", "--consume-for", "200ms")
            assert (reported["active"], reported["left"]) == (target, {})
        active = target
        with pair.administration("ewr" if active == "jfk" else "jfk") as left:
            assert left.get_queue("orders").status == "Disabled"
    found = drain(pair, active, len(sent))
    assert found == sent


def test_the_run_carries_on_what_was_killed(pair: Paired) -> None:
    pair.verb("create")
    with pair.client("ewr") as client:
        send(client, "a", "b")
    process = pair.start("failover", "--consume-for", "1h")
    until(lambda: process.poll() is not None or pair.state["phase"] == "consuming")
    process.kill()
    process.communicate()
    pair.run()
    try:
        # The alias led to ewr all the time, and a receiver empties it.
        with (
            pair.client() as client,
            client.get_queue_receiver("orders", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
        ):
            assert bodies(receive(receiver, 2)) == ["a", "b"]
        until(lambda: (pair.state["active"], pair.state["phase"]) == ("jfk", "steady"), pair.log_file.read_text())
        with pair.client() as client:
            send(client, "c")
        assert drain(pair, "jfk", 1) == ["c"]
    finally:
        pair.stop()


def test_the_alias_killed_and_started_again_leads_to_the_active_member(pair: Paired) -> None:
    pair.verb("create")
    pair.run()
    pair.stop(signal.SIGKILL)
    assert pair.verb("failover", "--force")["active"] == "jfk"
    pair.run()
    try:
        with pair.client() as client:
            send(client, "after")
        assert drain(pair, "jfk", 1) == ["after"]
    finally:
        pair.stop()


@pytest.mark.parametrize("is_frozen", [True, False], ids=["frozen", "killed"])
def test_a_member_that_is_lost_is_left_at_once_and_fenced_when_it_returns(pair: Paired, is_frozen: bool) -> None:
    pair.verb("create")
    pair.run()
    ewr = pair.members["ewr"]
    try:
        with pair.client(retry_total=0) as client:
            send(client, "before")
            if is_frozen:
                os.kill(ewr.pid, signal.SIGSTOP)
            else:
                ewr.kill()
            process = pair.start("failover", "--force", "--json")
            began = time.monotonic()
            until(lambda: pair.state["active"] == "jfk")
            switched = time.monotonic()
            sent = ""
            while not sent:
                assert time.monotonic() < began + PATIENCE_SECONDS
                try:
                    with pair.client(retry_total=0) as fresh:
                        send(fresh, "after")
                    sent = "after"
                except ServiceBusError:
                    time.sleep(0.02)
            led = time.monotonic() - switched
        assert led < PATIENCE_SECONDS / 3  # far less on an idle machine
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, errors
        reported = json.loads(output.splitlines()[-1])
        assert (reported["active"], reported["fence"]) == ("jfk", "pending")
        assert reported["pending"]
        assert pair.verb("status", code=1)["fence"] == "pending"
        if is_frozen:
            os.kill(ewr.pid, signal.SIGCONT)
        else:
            ewr.start()
        until(lambda: pair.state["fences"]["ewr"] == "closed", pair.log_file.read_text())
        with pytest.raises(MessagingEntityDisabledError), pair.client("ewr", retry_total=0) as direct:
            send(direct, "unknowingly")
        assert drain(pair, "jfk", 1) == ["after"]
    finally:
        if is_frozen:
            os.kill(ewr.pid, signal.SIGCONT)
        pair.stop()
    # What the lost member contained is delivered after the fail-back.
    assert pair.verb("failover", "--consume-for", "0s")["active"] == "ewr"
    assert drain(pair, "ewr", 1) == ["before"]


def test_a_process_with_an_older_state_follows(pair: Paired) -> None:
    """Two state folders, as on two machines."""
    pair.verb("create")
    elsewhere = pair.folder / "elsewhere"
    assert pair.verb("create", "--state", str(elsewhere))["active"] == "ewr"
    assert pair.verb("failover", "--force")["active"] == "jfk"
    reported = pair.verb("sync", "--state", str(elsewhere))
    assert (reported["active"], reported["epoch"]) == ("jfk", 2)
    # One that was unavailable may not fail over from its old state.
    assert pair.verb("failover", "--state", str(elsewhere))["active"] == "ewr"
    assert pair.verb("sync")["epoch"] == 3


def test_a_planned_fail_over_is_disturbed_by_no_run_elsewhere(pair: Paired) -> None:
    """It keeps the members in step, and notices that the fail-over has stopped the old one."""
    pair.verb("create")
    elsewhere = pair.folder / "elsewhere"
    pair.verb("create", "--state", str(elsewhere))
    running = pair.start("run", "--state", str(elsewhere), "--json")
    try:
        assert running.stdout is not None
        running.stdout.readline()
        with pair.client("ewr") as client:
            send(client, "waits")
        reported = pair.verb("failover", "--consume-for", "3s")
        assert (reported["active"], reported["moved"]) == ("jfk", 1)
        known = elsewhere / "pairs" / "contoso" / "state.json"
        until(lambda: json.loads(known.read_text())["active"] == "jfk", "it does not follow")
        with pair.client("jfk") as client:
            send(client, "after")
        assert drain(pair, "jfk", 2) == ["waits", "after"]
    finally:
        running.kill()
        running.communicate()


def test_a_creation_killed_anywhere_is_known_as_made_by_pairing(pair: Paired) -> None:
    """What pairing was about to make is deleted with its original, as all that it made."""
    with pair.administration("ewr") as ewr:
        for number in range(40):
            ewr.create_queue(f"q{number}")
        process = pair.start("create")
        until(lambda: process.poll() is not None or (pair.is_created and pair.state["intended"]))
        with pair.administration("jfk") as jfk:
            until(lambda: process.poll() is not None or len(list(jfk.list_queues())) > 5)
            process.kill()
            process.communicate()
            assert pair.verb("create")["in_step"]
            for number in range(40):
                ewr.delete_queue(f"q{number}")
            assert pair.verb("sync")["in_step"]
            assert pair.verb("status")["only_at_standby"] == []
            assert not [each.name for each in jfk.list_queues() if each.name.startswith("q")]


def test_a_planned_fail_over_ends_where_one_that_another_machine_forces_leads(pair: Paired) -> None:
    """It waits for receivers, then another operator interrupts it; it would have gone back, and both members were open."""
    pair.verb("create")
    elsewhere = pair.folder / "elsewhere"
    pair.verb("create", "--state", str(elsewhere))
    with pair.client("ewr") as client, client.get_topic_sender("flights") as sender:
        sender.send_messages(ServiceBusMessage("nobody receives it"))
    planned = pair.start("failover", "--consume-for", "1h", "--json")
    until(lambda: pair.state["phase"] == "consuming")
    reported = pair.verb("failover", "--force", "--state", str(elsewhere))
    assert (reported["active"], reported["epoch"], reported["pending"]) == ("jfk", 3, "")
    output, errors = planned.communicate(timeout=PATIENCE_SECONDS)
    assert (planned.returncode, json.loads(output)["error"]["code"]) == (1, "superseded"), errors
    assert "another fail-over has begun meanwhile (epoch 3)" in errors
    assert (pair.state["active"], pair.state["epoch"], pair.state["phase"]) == ("jfk", 3, "steady")
    assert pair.verb("sync")["active"] == pair.verb("sync", "--state", str(elsewhere))["active"] == "jfk"
    with pytest.raises(MessagingEntityDisabledError), pair.client("ewr", retry_total=0) as direct:
        send(direct, "unknowingly")
    with pair.client("jfk") as client:
        send(client, "after")
    assert drain(pair, "jfk", 1) == ["after"]
    assert pair.verb("break")["broken"]
    broken = pair.start("sync", "--state", str(elsewhere))
    _, errors = broken.communicate(timeout=PATIENCE_SECONDS)
    assert "it was broken with another state folder" in errors
