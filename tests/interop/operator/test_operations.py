"""`isthmus namespace stats|peek|purge|resubmit|export|import|backup` against a served namespace, with azure-servicebus at
the other side.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode

from harness.client.sdk_client import WAIT_SECONDS, bodies, receive
from isthmus.cli.app import main
from isthmus.operations.file.message_file import DamagedFileError, MessageReader
from isthmus.operations.server import backup
from isthmus.testing.namespace import namespace

SENDER_KEY = "c2VuZGVyLWtleS1vZi1hLXRlc3QtMzItYnl0ZXMtMTI="
CONFIG = """
limits: {min_lock_duration: 1s}
queues:
  work: {}
  other: {authorization_rules: {sender: {rights: [Send], primary_key: env:ISTHMUS_TEST_SENDER_KEY}}}
  once: {requires_duplicate_detection: true}
  closed: {max_message_size_in_kilobytes: 1}
  short: {lock_duration: 4s}
  brief: {lock_duration: 2s}
  big: {max_message_size_in_kilobytes: 10240}
  big-too: {max_message_size_in_kilobytes: 10240}
  sessions: {requires_session: true, lock_duration: 5s}
  spread: {enable_partitioning: true, lock_duration: 5s}
  spread-once: {enable_partitioning: true, requires_duplicate_detection: true}
  entry: {forward_to: middle}
  middle: {forward_to: once}
  failing: {forward_dead_lettered_messages_to: once}
topics:
  moved: {subscriptions: {isthmus.moved.jfk: {}, audit: {}}}
  flights: {subscriptions: {all: {}}}
  routed: {subscriptions: {all: {}, on: {forward_to: entry}}}
"""


class Operator:
    def __init__(self, ns, capsys):
        self.ns = ns
        self.capsys = capsys
        self.client = ServiceBusClient.from_connection_string(ns.connection_string)

    def run(self, *given, code=0):
        """A verb's JSON."""
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["namespace", *map(str, given), "--json"])
        output, errors = self.capsys.readouterr()
        assert (ended.value.code or 0) == code, (output, errors)
        assert "SharedAccessKey" not in output
        return [json.loads(line) for line in output.splitlines()]

    def send(self, path, count, *, ids="", **more):
        with self.client.get_queue_sender(path) as sender:
            messages = [
                ServiceBusMessage(
                    f"body-{n}", message_id=f"{ids or path}-{n}", application_properties={"number": n, **more}
                )
                for n in range(count)
            ]
            sender.send_messages(messages)

    def take(self, path, count, sub_queue=None, **subscription):
        """Receive and delete."""
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        receiver = (
            self.client.get_subscription_receiver(path, receive_mode=mode, sub_queue=sub_queue, **subscription)
            if subscription
            else self.client.get_queue_receiver(path, receive_mode=mode, sub_queue=sub_queue)
        )
        found = []
        with receiver:
            while len(found) < count:
                got = receiver.receive_messages(max_message_count=count, max_wait_time=5)
                assert got, f"{len(found)} of {count}"
                found += got
        return found

    def bury(self, path, count, **subscription):
        receiver = (
            self.client.get_subscription_receiver(path, **subscription)
            if subscription
            else self.client.get_queue_receiver(path)
        )
        with receiver:
            done = 0
            while done < count:
                for message in receiver.receive_messages(max_message_count=count, max_wait_time=5):
                    receiver.dead_letter_message(message, reason="bad", error_description=f"no {done}")
                    done += 1

    def count(self, path):
        return len(self.run("peek", path, "--max", 0))


@pytest.fixture(scope="module")
def running():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISTHMUS_TEST_SENDER_KEY", SENDER_KEY)
        with namespace(config=CONFIG) as ns:
            yield ns


@pytest.fixture
def operator(running, capsys, monkeypatch):
    monkeypatch.setenv("ISTHMUS_CONNECTION", running.connection_string)
    made = Operator(running, capsys)
    with made.client:
        yield made
        [found] = made.run("stats", "--interval", "0.1")
        for row in found["entities"]:
            if row["active"] + row["deferred"] + row["scheduled"]:
                made.run("purge", row["entity"], "--yes")
            if row["dead_letter"]:
                made.run("purge", row["entity"], "--dead-letter", "--yes")


def test_peek_shows_messages_and_changes_nothing(operator):
    operator.send("work", 30)
    assert [row["sequence_number"] for row in operator.run("peek", "work")] == sorted(
        row["sequence_number"] for row in operator.run("peek", "work", "--max", 20)
    )
    rows = operator.run("peek", "work", "--max", 0)
    assert [row["application_properties"]["number"] for row in rows] == list(range(30))
    assert rows[3] | {"message_id": "work-3", "state": "active", "delivery_count": 0, "body": "body-3"} == rows[3]
    later = operator.run("peek", "work", "--from-sequence", rows[25]["sequence_number"])
    assert later == rows[25:]
    assert operator.run("peek", "work", "--filter", "number > 27") == rows[28:]
    assert len(operator.take("work", 30)) == 30


def test_a_table_of_messages_is_for_people(operator, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    operator.send("work", 2)
    operator.bury("work", 1)
    main_words = ["namespace", "peek", "work", "--dead-letter"]
    with suppress(SystemExit):
        main(main_words)
    shown = capsys.readouterr().out
    assert "bad: no 0" in shown
    assert "work-0" in shown


def test_purge_counts_first_and_removes_only_what_is_meant(operator):
    operator.send("work", 20)
    with operator.client.get_queue_sender("work") as sender:
        sender.schedule_messages(
            ServiceBusMessage("later", application_properties={"number": 100}), datetime.now(UTC) + timedelta(hours=1)
        )
    with operator.client.get_queue_receiver("work") as receiver:
        receiver.defer_message(receiver.receive_messages(max_message_count=1, max_wait_time=5)[0])
    [reported] = operator.run("purge", "work", "--filter", "number < 10 OR number = 100")
    assert reported | {"dry_run": True, "removed": 0, "meant": {"active": 9, "deferred": 1, "scheduled": 1}} == reported
    assert operator.count("work") == 21
    [done] = operator.run("purge", "work", "--filter", "number < 10 OR number = 100", "--yes")
    assert done | {"removed": 11, "left": 0} == done
    rows = operator.run("peek", "work", "--max", 0)
    assert [row["application_properties"]["number"] for row in rows] == list(range(10, 20))
    assert {row["delivery_count"] for row in rows} == {0}
    [done] = operator.run("purge", "work", "--yes", "--max", 4)
    assert done["removed"] == 4
    assert len(operator.take("work", 6)) == 6


def test_purge_shows_what_is_locked(operator):
    operator.send("work", 3)
    with operator.client.get_queue_receiver("work") as receiver:
        [locked] = receiver.receive_messages(max_message_count=1, max_wait_time=5)
        [done] = operator.run("purge", "work", "--yes", code=1)
        assert done | {"removed": 2, "left": 1} == done
        receiver.complete_message(locked)


def test_what_a_purge_has_locked_stays_locked_longer_than_a_lock_lasts(operator, monkeypatch):
    operator.send("short", 40)
    import isthmus.operations.removal.sweep as module

    monkeypatch.setattr(module, "_WINDOW", 2)
    dispose = module._dispose

    def slow(*arguments):
        time.sleep(0.3)
        dispose(*arguments)

    monkeypatch.setattr(module, "_dispose", slow)
    [done] = operator.run("purge", "short", "--filter", "number = 39", "--yes")
    assert done["removed"] == 1
    assert {row["delivery_count"] for row in operator.run("peek", "short", "--max", 0)} == {0}


def test_locks_are_renewed_in_time_where_clocks_are_apart(operator, monkeypatch):
    operator.send("short", 32)
    import isthmus.operations.removal.sweep as module

    behind = SimpleNamespace(monotonic=time.monotonic, time=lambda: time.time() - 3600)
    monkeypatch.setattr(module, "time", behind)
    monkeypatch.setattr(module, "_WINDOW", 2)
    dispose = module._dispose

    def slow(*arguments):
        time.sleep(0.3)
        dispose(*arguments)

    monkeypatch.setattr(module, "_dispose", slow)
    [done] = operator.run("purge", "short", "--yes", "--filter", "number % 2 = 1")
    assert done["removed"] == 16
    assert {row["delivery_count"] for row in operator.run("peek", "short", "--max", 0)} == {0}


def send_in_sessions(operator, count, sessions=3):
    with operator.client.get_queue_sender("sessions") as sender:
        sender.send_messages(
            [
                ServiceBusMessage(f"{n}", session_id=f"s{n % sessions}", application_properties={"number": n})
                for n in range(count)
            ]
        )


def test_purge_goes_through_sessions(operator, monkeypatch):
    send_in_sessions(operator, 30)
    later = ServiceBusMessage("later", session_id="s7", application_properties={"number": 100})
    with operator.client.get_queue_sender("sessions") as sender:
        sender.schedule_messages(later, datetime.now(UTC) + timedelta(hours=1))
    with operator.client.get_queue_receiver("sessions", session_id="s1") as receiver:
        for _ in range(4):
            [message] = receiver.receive_messages(max_message_count=1, max_wait_time=5)
            receiver.defer_message(message)
        receiver.session.set_state(b"state")
    numbers = "number % 2 = 1 OR number = 100 OR number < 3"
    [reported] = operator.run("purge", "sessions", "--filter", numbers)
    assert (
        reported | {"dry_run": True, "removed": 0, "meant": {"active": 15, "deferred": 2, "scheduled": 1}} == reported
    )
    import isthmus.operations.removal.sweep as module

    dispose, pauses = module._dispose, [1.5] * 4

    def slow(*arguments):  # the first pass takes longer than a session's lock lasts
        time.sleep(pauses.pop() if pauses else 0)
        dispose(*arguments)

    monkeypatch.setattr(module, "_WINDOW", 2)
    monkeypatch.setattr(module, "_dispose", slow)
    [done] = operator.run("purge", "sessions", "--filter", numbers, "--yes")
    assert done | {"removed": 18, "left": 0} == done
    rows = operator.run("peek", "sessions", "--max", 0)
    assert [row["application_properties"]["number"] for row in rows] == list(range(4, 30, 2))
    assert {row["delivery_count"] for row in rows if row["state"] == "active"} == {0}
    # The sessions are free again, in order, and keep their states.
    with operator.client.get_queue_receiver("sessions", session_id="s1") as receiver:
        assert receiver.session.get_state() == b"state"
        assert bodies(receive(receiver, 3)) == ["16", "22", "28"]
        assert receiver.receive_messages(max_wait_time=0.5) == []
    [done] = operator.run("purge", "sessions", "--yes")
    assert done | {"removed": 13, "left": 0} == done


def test_purge_leaves_locked_sessions(operator):
    send_in_sessions(operator, 9)
    with operator.client.get_queue_receiver("sessions", session_id="s0"):
        [done] = operator.run("purge", "sessions", "--yes", code=1)
        assert done | {"removed": 6, "left": 3} == done
    [done] = operator.run("purge", "sessions", "--yes")
    assert done | {"removed": 3, "left": 0} == done


def test_dead_letters_of_sessions_are_sent_again_into_their_sessions(operator):
    send_in_sessions(operator, 9)
    with operator.client.get_queue_receiver("sessions", session_id="s1") as receiver:
        for _ in range(2):
            [message] = receiver.receive_messages(max_message_count=1, max_wait_time=5)
            receiver.dead_letter_message(message, reason="bad")
    [done] = operator.run("resubmit", "sessions", "--yes")
    assert done | {"moved": 2, "refused": 0, "left": 0} == done
    with operator.client.get_queue_receiver("sessions", session_id="s1") as receiver:
        found = receive(receiver, 3)
        assert receiver.receive_messages(max_wait_time=0.5) == []
        assert bodies(found) == ["7", "1", "4"]
        assert {(message.session_id, message.dead_letter_reason) for message in found} == {("s1", None)}


def test_export_removes_from_sessions_and_import_brings_them_back(operator, tmp_path):
    send_in_sessions(operator, 6)
    [done] = operator.run("export", "sessions", tmp_path / "file", "--remove")
    assert done | {"written": 6, "removed": 6, "left": 0} == done
    operator.run("import", tmp_path / "file", "sessions")
    with operator.client.get_queue_receiver("sessions", session_id="s2") as receiver:
        assert bodies(receive(receiver, 2)) == ["2", "5"]
        assert receiver.receive_messages(max_wait_time=0.5) == []


def test_dead_letters_are_sent_again_without_their_death(operator):
    operator.send("work", 10)
    operator.bury("work", 10)
    [reported] = operator.run("resubmit", "work", "--filter", "number >= 4")
    assert reported | {"dry_run": True, "meant": 6, "moved": 0, "to": "work"} == reported
    given = ("resubmit", "work", "--filter", "number >= 4", "--action", "SET again = 'yes'", "--yes")
    [done] = operator.run(*given)
    assert done | {"moved": 6, "refused": 0, "left": 0} == done
    taken = operator.take("work", 6)
    assert [message.message_id for message in taken] == [f"work-{n}" for n in range(4, 10)]
    properties = taken[0].application_properties
    assert set(properties) == {b"number", b"again"}
    assert (taken[0].dead_letter_source, taken[0].delivery_count, str(taken[0])) == (None, 0, "body-4")
    dead = operator.run("peek", "work", "--dead-letter")
    assert [row["application_properties"]["number"] for row in dead] == [0, 1, 2, 3]
    assert {row["dead_letter_reason"] for row in dead} == {"bad"}


def test_a_resubmission_that_lasts_longer_than_a_lock_keeps_its_locks(operator, monkeypatch):
    import isthmus.operations.resubmit as module

    operator.send("brief", 5)
    operator.bury("brief", 5)
    deliver = module.deliver

    def slow(*arguments, **named):
        time.sleep(0.7)
        return deliver(*arguments, **named)

    monkeypatch.setattr(module, "_AT_ONCE", 1)
    monkeypatch.setattr(module, "deliver", slow)
    [done] = operator.run("resubmit", "brief", "--yes")
    assert done | {"moved": 5, "refused": 0, "left": 0} == done
    assert operator.count("brief/$DeadLetterQueue") == 0
    assert operator.count("brief") == 5


def test_a_dead_letter_whose_lock_was_lost_is_reported_as_left(operator, monkeypatch):
    """It was sent, and is in the dead-letter queue as well."""
    import isthmus.operations.resubmit as module

    operator.send("brief", 3)
    operator.bury("brief", 3)
    deliver = module.deliver

    def stuck(*arguments, **named):
        time.sleep(2.5)
        return deliver(*arguments, **named)

    monkeypatch.setattr(module, "deliver", stuck)
    [done] = operator.run("resubmit", "brief", "--yes", code=1)
    assert done | {"moved": 0, "refused": 0, "left": 3} == done
    assert operator.count("brief/$DeadLetterQueue") == 3
    assert operator.count("brief") == 3


def test_a_purge_counts_only_what_the_namespace_has_removed(operator, monkeypatch):
    import isthmus.operations.removal.sweep as module

    operator.send("brief", 3)
    dispose = module._dispose

    def late(*arguments):
        time.sleep(2.5)
        dispose(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_dispose", late)
        [done] = operator.run("purge", "brief", "--yes", code=1)
    assert done | {"removed": 0, "left": 3} == done
    assert operator.count("brief") == 3


def test_dead_letters_of_a_subscription_go_to_the_topic_or_to_the_named_target(operator):
    with operator.client.get_topic_sender("flights") as sender:
        sender.send_messages([ServiceBusMessage(f"{n}", application_properties={"number": n}) for n in range(4)])
    operator.bury("flights", 4, subscription_name="all")
    [done] = operator.run("resubmit", "flights/Subscriptions/all", "--max", 2, "--yes")
    assert done | {"to": "flights", "moved": 2} == done
    assert [str(m) for m in operator.take("flights", 2, subscription_name="all")] == ["0", "1"]
    [done] = operator.run("resubmit", "flights/Subscriptions/all", "--to", "other", "--yes")
    assert done["moved"] == 2
    assert [str(m) for m in operator.take("other", 2)] == ["2", "3"]


def test_a_dead_letter_of_a_route_shows_under_which_number_it_had_entered(operator):
    """`verify` takes it for no loss then."""
    route = "isthmus.moved.jfk"
    with operator.client.get_topic_sender("moved") as sender:
        sender.send_messages([ServiceBusMessage(f"{n}", message_id=f"{n}") for n in range(3)])
    operator.take("moved", 1, subscription_name=route)
    operator.bury("moved", 2, subscription_name=route)
    [done] = operator.run("resubmit", f"moved/Subscriptions/{route}", "--yes")
    assert done | {"moved": 2, "left": 0} == done
    rows = operator.run("peek", "moved/Subscriptions/audit", "--max", 0)
    assert [row["application_properties"] for row in rows] == [{}, {}, {}, {"repl-resent": "2"}, {"repl-resent": "3"}]


def test_what_the_target_refuses_stays_dead(operator):
    operator.send("work", 3)
    with operator.client.get_queue_sender("work") as sender:
        sender.send_messages(ServiceBusMessage("x" * 4096, application_properties={"number": 3}))
    operator.bury("work", 4)
    [done] = operator.run("resubmit", "work", "--to", "closed", "--yes", code=1)
    assert done | {"moved": 3, "refused": 1, "left": 0} == done
    assert "1024" in done["first_refusal"]
    assert operator.count("work/$DeadLetterQueue") == 1
    [done] = operator.run("resubmit", "work", "--action", "SET number = 1 / 0", "--yes", code=1)
    assert done | {"moved": 0, "refused": 1} == done
    assert operator.count("work/$DeadLetterQueue") == 1


def test_where_duplicates_are_detected_copies_need_ids_of_their_own(operator):
    operator.send("once", 3)
    operator.bury("once", 3)
    [refused] = operator.run("resubmit", "once", "--yes", code=2)
    assert "--new-message-ids" in refused["error"]["message"]
    [done] = operator.run("resubmit", "once", "--new-message-ids", "--yes")
    assert done["moved"] == 3
    assert {message.message_id for message in operator.take("once", 3)}.isdisjoint({"once-0", "once-1", "once-2"})


def test_import_into_what_detects_duplicates_is_refused(operator, tmp_path):
    operator.send("once", 30, ids="exported")
    file = tmp_path / "file"
    operator.run("export", "once", file)
    operator.take("once", 30)
    for entity in ("once", "entry", "failing", "routed", "spread-once"):
        [refused] = operator.run("import", file, entity, code=2)
        assert "--new-message-ids" in refused["error"]["message"]
        assert ("'spread-once'" if entity == "spread-once" else "'once'") in refused["error"]["message"]
    assert not file.with_name("file.progress").exists()
    [done] = operator.run("import", file, "once", "--keep-message-ids")
    assert done | {"sent": None, "accepted": 30} == done
    assert operator.count("once") == 0
    for entity in ("once", "spread-once"):
        [done] = operator.run("import", file, entity, "--new-message-ids")
        assert done | {"sent": 30, "accepted": 30, "passed_over": 0} == done
        rows = operator.run("peek", entity, "--max", 0)
        assert sorted(row["application_properties"]["number"] for row in rows) == list(range(30))


def test_a_resumed_import_doubles_and_loses_nothing_where_duplicates_are_detected(operator, tmp_path, monkeypatch):
    from isthmus.operations.file import carry
    from isthmus.operations.file.progress_note import ProgressNote

    operator.send("work", 20)
    file = tmp_path / "file"
    operator.run("export", "work", file)
    monkeypatch.setattr(carry, "_GROUP", 8)
    write, writes = ProgressNote.write, []

    def killed(note):  # after the second group was acknowledged, before that was noted
        writes.append(1)
        if len(writes) == 3:
            raise KeyboardInterrupt
        write(note)

    monkeypatch.setattr(ProgressNote, "write", killed)
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        main(["namespace", "import", str(file), "once", "--new-message-ids"])
    assert operator.count("once") == 16
    monkeypatch.setattr(ProgressNote, "write", write)
    [done] = operator.run("import", file, "once", "--new-message-ids")
    assert done | {"passed_over": 8, "accepted": 12} == done
    rows = operator.run("peek", "once", "--max", 0)
    assert [row["application_properties"]["number"] for row in rows] == list(range(20))


def test_a_refusal_does_not_send_the_others_of_its_group_again(operator, tmp_path):
    operator.send("work", 3)
    with operator.client.get_queue_sender("work") as sender:
        sender.send_messages(ServiceBusMessage("x" * 4096))
    operator.send("work", 3)
    file = tmp_path / "file"
    operator.run("export", "work", file)
    for _ in range(2):
        [refused] = operator.run("import", file, "closed", code=1)
        assert refused["error"]["code"] == "message-too-large"
        assert operator.count("closed") == 6


def test_what_cannot_be_asked_for_its_detection_is_refused(operator, tmp_path, monkeypatch):
    operator.send("work", 3)
    file = tmp_path / "file"
    operator.run("export", "work", file)
    limited = re.sub(
        "Name=.*?;SharedAccessKey=.*?;", f"Name=sender;SharedAccessKey={SENDER_KEY};", operator.ns.connection_string
    )
    monkeypatch.setenv("LIMITED", limited)
    [refused] = operator.run("import", file, "other", "--connection", "env:LIMITED", code=2)
    assert "Manage" in refused["error"]["message"]
    assert operator.count("other") == 0
    [done] = operator.run("import", file, "other", "--connection", "env:LIMITED", "--keep-message-ids")
    assert done | {"sent": None, "accepted": 3} == done
    [done] = operator.run("import", file, "other", "--connection", "env:LIMITED", "--new-message-ids")
    assert done | {"sent": 3} == done


def test_export_and_import_keep_every_part(operator, tmp_path):
    operator.send("work", 700, text="ü", flag=True, ratio=1.5)
    with operator.client.get_queue_sender("work") as sender:
        sender.send_messages(
            ServiceBusMessage(b"\0\xff", subject="s", session_id="x", to="t", time_to_live=timedelta(hours=1))
        )
    file = tmp_path / "work.messages"
    [done] = operator.run("export", "work", file)
    assert done | {"written": 701, "removed": 0} == done
    assert operator.count("work") == 701
    assert file.stat().st_mode & 0o777 == 0o600
    [done] = operator.run("import", file, "other")
    assert done | {"sent": 701, "passed_over": 0} == done
    before, after = operator.take("work", 701), operator.take("other", 701)
    for one, other in zip(before, after, strict=True):
        for name in ("message_id", "subject", "session_id", "to", "time_to_live", "content_type", "correlation_id"):
            assert getattr(one, name) == getattr(other, name)
        assert one.application_properties == other.application_properties
        assert b"".join(one.body) == b"".join(other.body)
    assert not (tmp_path / "work.messages.progress").exists()
    [refused] = operator.run("export", "work", file, code=2)
    assert "exists already" in refused["error"]["message"]


def test_large_scheduled_deferred_and_dead_messages_are_exported_and_imported(operator, tmp_path):
    """What an import keeps: bodies of any size, when a message is due, why it was dead-lettered; what was deferred is active then."""
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    large = bytes(range(256)) * 20_000
    with operator.client.get_queue_sender("big") as sender:
        sender.send_messages(ServiceBusMessage("set aside", message_id="deferred"))
        sender.send_messages(ServiceBusMessage("dead", message_id="dead", application_properties={"n": 1}))
        sender.send_messages(ServiceBusMessage(large, message_id="large"))
        sender.schedule_messages(ServiceBusMessage("later", message_id="later"), due)
    with operator.client.get_queue_receiver("big") as receiver:
        first, second = receive(receiver, 2)
        receiver.defer_message(first)
        receiver.dead_letter_message(second, reason="bad", error_description="no good")
    living, dead = tmp_path / "living", tmp_path / "dead"
    [done] = operator.run("export", "big", living, "--remove")
    assert done | {"written": 3, "removed": 3, "left": 0} == done
    [done] = operator.run("export", "big", dead, "--dead-letter", "--remove")
    assert done | {"written": 1, "removed": 1, "left": 0} == done
    assert (operator.count("big"), operator.count("big/$DeadLetterQueue")) == (0, 0)

    [refused] = operator.run("import", living, "work", code=1)
    assert f"; message 2 of '{living}'" in refused["error"]["message"]
    assert refused["error"]["code"] == "message-too-large"
    [done] = operator.run("import", living, "big-too")
    assert done | {"sent": 3, "deferred": 1} == done
    [done] = operator.run("import", dead, "big-too")
    assert done | {"sent": 1, "deferred": 0} == done
    rows = {row["message_id"]: row for row in operator.run("peek", "big-too", "--max", 0)}
    assert {name: row["state"] for name, row in rows.items()} == {
        "deferred": "active",
        "large": "active",
        "later": "scheduled",
        "dead": "active",
    }
    assert rows["dead"]["application_properties"] == {
        "n": 1,
        "DeadLetterReason": "bad",
        "DeadLetterErrorDescription": "no good",
    }
    with operator.client.get_queue_receiver("big-too") as receiver:
        [later] = [each for each in receiver.peek_messages(max_message_count=10) if each.message_id == "later"]
        assert later.scheduled_enqueue_time_utc == due
    taken = {message.message_id: b"".join(message.body) for message in operator.take("big-too", 3)}
    assert taken == {"deferred": b"set aside", "large": large, "dead": b"dead"}


def test_export_with_removal_removes_what_is_in_the_file(operator, tmp_path):
    operator.send("work", 20)
    with operator.client.get_queue_sender("work") as sender:
        sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(hours=1))
    file = tmp_path / "some"
    [done] = operator.run("export", "work", file, "--filter", "number < 5 OR number IS NULL", "--remove")
    assert done | {"written": 6, "removed": 6, "left": 0} == done
    with MessageReader(file) as reader:
        assert [state for state, _ in reader] == [0] * 5 + [2]
    assert operator.count("work") == 15


def test_partitions_are_exported_removed_and_imported(operator, tmp_path):
    with operator.client.get_queue_sender("spread") as sender:
        for n in range(60):
            sender.send_messages(
                ServiceBusMessage(
                    f"{n}", message_id=f"m{n}", partition_key=f"k{n % 7}", application_properties={"number": n}
                )
            )
    with operator.client.get_queue_receiver("spread") as receiver:
        for message in receiver.receive_messages(max_message_count=5, max_wait_time=5):
            receiver.defer_message(message)
    file = tmp_path / "spread.messages"
    [done] = operator.run("export", "spread", file, "--filter", "number >= 30", "--remove")
    assert done["written"] == done["removed"] >= 25
    assert done["left"] == 0
    assert operator.count("spread") == 60 - done["removed"]
    [back] = operator.run("import", file, "spread")
    assert back["sent"] == done["written"]
    assert operator.count("spread") == 60
    with operator.client.get_queue_receiver("spread") as receiver:
        seen = receiver.peek_messages(max_message_count=100)
    by_key: dict[str, set[int]] = {}
    for message in seen:
        by_key.setdefault(message.partition_key, set()).add(message.sequence_number >> 48)
        assert message.partition_key == f"k{int(str(message)) % 7}"
    assert len(by_key) == 7
    assert all(len(fragments) == 1 for fragments in by_key.values())
    [done] = operator.run("purge", "spread", "--yes")
    assert (done["removed"], done["left"]) == (60, 0)


def test_a_damaged_file_is_reported_and_what_comes_before_the_damage_is_sent(operator, tmp_path):
    operator.send("work", 10)
    file = tmp_path / "file"
    operator.run("export", "work", file)
    content = bytearray(file.read_bytes())
    content[-200] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedFileError) as damaged, MessageReader(file) as reader:
        list(reader)
    position = damaged.value.attributes["place"]
    [refused] = operator.run("import", file, "other", code=1)
    assert refused["error"]["code"] == "damaged-file"
    assert operator.count("other") == position - 1
    file.write_bytes(b"something else")
    [refused] = operator.run("import", file, "other", code=1)
    assert refused["error"]["code"] == "damaged-file"


def test_stats_show_rates(operator):
    begun, stop = threading.Event(), threading.Event()

    def send():
        client = ServiceBusClient.from_connection_string(operator.ns.connection_string)
        with client, client.get_queue_sender("work") as sender:
            while not stop.is_set():
                sender.send_messages([ServiceBusMessage("x") for _ in range(10)])
                begun.set()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        assert begun.wait(60)
        [found] = operator.run("stats", "--interval", "3")
    finally:
        stop.set()
        thread.join()
    row = next(row for row in found["entities"] if row["entity"] == "work")
    assert row["in_rate"] > 10
    assert row["active"] > 0
    assert found["namespace"]["connections"] >= 1
    assert found["namespace"]["healthy"]


def test_a_wrong_reference_or_key_is_reported_without_the_secret(operator, monkeypatch):
    [refused] = operator.run("stats", "--connection", "env:NOT_SET_ANYWHERE", code=2)
    assert "NOT_SET_ANYWHERE" in refused["error"]["message"]
    wrong = operator.ns.connection_string.split("SharedAccessKey=")[0] + "SharedAccessKey=d3Jvbmc=;"
    monkeypatch.setenv("WRONG", wrong + "UseDevelopmentEmulator=true")
    for verb in (("stats",), ("peek", "work")):
        [refused] = operator.run(*verb, "--connection", "env:WRONG", code=1)
        assert refused["error"]["code"] == "unauthorized"
        assert "d3Jvbmc=" not in json.dumps(refused)


def test_a_backup_under_load_has_everything_acknowledged_before_it(operator, tmp_path, capsys):
    acknowledged: list[str] = []
    stop = threading.Event()

    def send():
        client = ServiceBusClient.from_connection_string(operator.ns.connection_string)
        with client, client.get_queue_sender("work") as sender:
            number = 0
            while not stop.is_set():
                ids = [f"load-{number + n}" for n in range(50)]
                sender.send_messages([ServiceBusMessage("x" * 1000, message_id=each) for each in ids])
                acknowledged.extend(ids)
                number += 50

    thread = threading.Thread(target=send)
    thread.start()
    try:
        while len(acknowledged) < 1000:
            time.sleep(0.01)
        before = list(acknowledged)
        folder = tmp_path / "backup"
        [done] = operator.run("backup", folder, "--data", operator.ns.data)
    finally:
        stop.set()
        thread.join()
    assert done["running"]
    assert not (operator.ns.data / "backups").exists()
    [refused] = operator.run("backup", folder, "--data", operator.ns.data, code=2)
    assert "exists already" in refused["error"]["message"]
    with namespace(folder) as copy:
        with ServiceBusClient.from_connection_string(copy.connection_string) as client:
            mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
            with client.get_queue_receiver("work", receive_mode=mode) as receiver:
                found: list[str] = []
                while got := receiver.receive_messages(
                    max_message_count=1000, max_wait_time=WAIT_SECONDS if len(found) < len(before) else 2
                ):
                    found += [message.message_id for message in got]
        assert max(Counter(found).values()) == 1
        assert set(before) <= set(found)
        assert copy.stop() == 0
        [done] = operator.run("backup", tmp_path / "second", "--data", folder)
        assert not done["running"]
    [refused] = operator.run("backup", tmp_path / "third", "--data", tmp_path / "nothing", code=1)
    assert refused["error"]["code"] == "store"


def test_what_a_killed_backup_left_in_the_data_folder_goes_with_the_next_one(operator, tmp_path):
    """It would keep the disk from what the store no longer needs."""
    killed, at_work = (Path(backup._ask(operator.ns.data)) for _ in range(2))
    for each in (killed, at_work):
        os.utime(each, (0, 0))
    with backup.locked(at_work):
        operator.run("backup", tmp_path / "whole", "--data", operator.ns.data)
    assert (tmp_path / "whole" / "store" / "CURRENT").exists()
    assert (killed.exists(), at_work.exists()) == (False, True)
