"""`isthmus namespace serve` as a process: what it prints, how it ends, what it refuses."""

from __future__ import annotations

import gc
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import ServiceBusError

from harness.check.until import until
from isthmus.testing.namespace import NamespaceStartError, namespace

COMMAND = [sys.executable, "-c", "from isthmus.cli.app import main; main()", "namespace", "serve"]
ANY_PORTS = ["--port", "0", "--tls-port", "0", "--http-port", "0"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_it_prints_one_object_and_ends_cleanly(tmp_path, number):
    process = subprocess.Popen(
        [*COMMAND, "--data", str(tmp_path / "data"), *ANY_PORTS, "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    described = json.loads(process.stdout.readline())
    assert set(described) == {"connection_string", "admin_connection_string", "ports"}
    assert set(described["ports"]) == {"amqp", "tls", "http"}
    for port in described["ports"].values():
        socket.create_connection(("127.0.0.1", port)).close()
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (0, "")
    assert "Traceback" not in errors
    assert "SharedAccessKey" not in errors


def test_without_json_the_output_is_for_people(tmp_path):
    process = subprocess.Popen(
        [*COMMAND, "--data", str(tmp_path / "data"), *ANY_PORTS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(5)]
    process.terminate()
    process.communicate(timeout=30)
    assert "Endpoint=sb://127.0.0.1:" in lines[0]
    assert "ca.pem" in lines[3]


def test_a_folder_in_use_is_refused(tmp_path):
    with namespace(tmp_path / "data") as running:
        refused = run("--data", str(tmp_path / "data"), *ANY_PORTS, "--json")
        assert refused.returncode == 1
        assert "in use by another process" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert json.loads(refused.stdout)["error"]["code"] == "store"
        taken = run("--data", str(tmp_path / "other"), *ANY_PORTS[2:], "--port", str(running.ports["amqp"]))
        assert taken.returncode == 1
        assert "Cannot listen on 127.0.0.1" in taken.stderr


# The SDK leaves its socket open when the namespace stops.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_it_stops_under_load_and_keeps_what_it_acknowledged(tmp_path):
    with namespace(tmp_path / "data", config="queues: {q: {}}") as running:
        acknowledged = []

        def send():
            client = ServiceBusClient.from_connection_string(running.connection_string, retry_total=0)
            with suppress(ServiceBusError, OSError), client, client.get_queue_sender("q") as sender:
                while True:
                    sender.send_messages([ServiceBusMessage("x") for _ in range(50)])
                    acknowledged.append(50)

        worker = threading.Thread(target=send)
        worker.start()
        until(lambda: len(acknowledged) >= 20)
        began = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - began < 10
        worker.join(60)
        assert "Traceback" not in running.log()
        running.start()
        client = ServiceBusClient.from_connection_string(running.connection_string)
        with client, client.get_queue_receiver("q", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
            count = 0
            # Long for those that must come, a short while for those that may.
            while messages := receiver.receive_messages(1000, max_wait_time=20 if count < sum(acknowledged) else 2):
                count += len(messages)
        assert sum(acknowledged) <= count <= sum(acknowledged) + 50
    gc.collect()  # here, where the warning is ignored, and not in a later test


def test_faults_of_a_file_are_reported_all_at_once_with_exit_code_2(tmp_path):
    file = tmp_path / "entities.yaml"
    file.write_text("queus: {}\nqueues:\n  orders: {lock_duration: soon}\n")
    refused = run("--data", str(tmp_path / "data"), *ANY_PORTS, "--config", str(file))
    assert refused.returncode == 2
    assert "entities.yaml:1:1" in refused.stderr
    assert "entities.yaml:3:" in refused.stderr


def test_the_kit_shows_why_a_namespace_did_not_start(tmp_path):
    with pytest.raises(NamespaceStartError, match="queus"), namespace(tmp_path / "data", config="queus: {}\n"):
        pass


def test_the_clock_can_be_shifted(tmp_path):
    with namespace(tmp_path / "data", config="queues: {q: {}}", arguments=["--clock-offset", "86400"]) as running:
        client = ServiceBusClient.from_connection_string(running.connection_string)
        with client, client.get_queue_sender("q") as sender, client.get_queue_receiver("q") as receiver:
            sender.send_messages(ServiceBusMessage("x"))
            [message] = receiver.receive_messages(max_wait_time=5)
            assert message.enqueued_time_utc is not None
            ahead = message.enqueued_time_utc - datetime.now(UTC)
            assert timedelta(hours=23) < ahead < timedelta(hours=25)


def test_several_namespaces_in_one_process(tmp_path):
    """Separate folders, keys, ports and entities; one signal stops both."""
    for name in ("ewr", "jfk"):
        (tmp_path / f"{name}.yaml").write_text(f"queues: {{{name}-orders: {{}}}}\n")
    configs = [word for name in ("ewr", "jfk") for word in ("--config", str(tmp_path / f"{name}.yaml"))]
    process = subprocess.Popen(
        [*COMMAND, "--data", str(tmp_path / "data"), *configs, *ANY_PORTS, "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    found = json.loads(process.stdout.readline())["namespaces"]
    assert set(found) == {"ewr", "jfk"}
    assert not set(found["ewr"]["ports"].values()) & set(found["jfk"]["ports"].values())
    keys = {each["connection_string"].split("SharedAccessKey=")[1] for each in found.values()}
    assert len(keys) == 2
    for name, each in found.items():
        with ServiceBusClient.from_connection_string(each["connection_string"]) as client:
            with client.get_queue_sender(f"{name}-orders") as sender:
                sender.send_messages(ServiceBusMessage(name))
            with client.get_queue_receiver(f"{name}-orders") as receiver:
                [message] = receiver.receive_messages(max_wait_time=5)
                assert str(message) == name
                receiver.complete_message(message)
    assert (tmp_path / "data" / "ewr" / "store").is_dir()
    process.terminate()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors


def test_two_namespaces_of_one_name_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    files = [tmp_path / "x.yaml", tmp_path / "a" / "x.yaml"]
    for file in files:
        file.write_text("queues: {q: {}}\n")
    refused = run("--data", str(tmp_path / "data"), "--config", str(files[0]), "--config", str(files[1]), *ANY_PORTS)
    assert refused.returncode == 2
    assert "'x'" in refused.stderr
