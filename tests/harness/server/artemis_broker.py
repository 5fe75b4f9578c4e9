"""A real ActiveMQ Artemis for the length of a test: one broker with a journal on disk, from Maven Central.

`mvn` copies the jars once into .cache, with the user's own settings. Where there is no mvn the tests are passed over, but not in CI.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.server.client_certificate import client_certificate
from isthmus.amqp import section
from isthmus.amqp.performative import Source, Target
from isthmus.broker.security.certificate import ensure_certificate
from isthmus.errors import IsthmusError
from isthmus.testing.port import free_port
from isthmus.transport import Client, Endpoint, LinkTerms, Receiver, Sender

__all__ = ["ArtemisBroker", "artemis", "install_artemis"]

ROOT = Path(__file__).parents[3]
POM = ROOT / "tests" / "interop" / "artemis" / "pom.xml"
CACHE = ROOT / ".cache" / "interop"
INSTALL_SECONDS = 500
START_SECONDS = 120
STOP_SECONDS = 30
CALL_SECONDS = 20.0
_MAIN = "org.apache.activemq.artemis.core.server.embedded.Main"
_MANAGEMENT = "activemq.management"
_CONFIG = """<configuration xmlns="urn:activemq">
  <core xmlns="urn:activemq:core">
    <name>{name}</name>
    <security-enabled>false</security-enabled>
    <persistence-enabled>true</persistence-enabled>
    <journal-type>NIO</journal-type>
    <journal-datasync>{sync}</journal-datasync>
    <journal-file-size>10M</journal-file-size>
    <journal-pool-files>10</journal-pool-files>
    <journal-buffer-timeout>200000</journal-buffer-timeout>
    <paging-directory>{folder}/data/paging</paging-directory>
    <bindings-directory>{folder}/data/bindings</bindings-directory>
    <journal-directory>{folder}/data/journal</journal-directory>
    <large-messages-directory>{folder}/data/large</large-messages-directory>
    <message-expiry-scan-period>-1</message-expiry-scan-period>
    <max-disk-usage>-1</max-disk-usage>
    {more}
    <acceptors>
      <acceptor name="all">tcp://127.0.0.1:{port}?protocols=AMQP,CORE;amqpDuplicateDetection=true;amqpCredits={credit};amqpLowCredits={low}</acceptor>
      {acceptors}
    </acceptors>
    <address-settings>
      <address-setting match="#">
        <auto-create-queues>true</auto-create-queues>
        <auto-create-addresses>true</auto-create-addresses>
        <auto-delete-queues>false</auto-delete-queues>
        <auto-delete-addresses>false</auto-delete-addresses>
        <max-delivery-attempts>-1</max-delivery-attempts>
        <redelivery-delay>0</redelivery-delay>
        <max-size-bytes>-1</max-size-bytes>
        <address-full-policy>BLOCK</address-full-policy>
      </address-setting>
    </address-settings>
  </core>
</configuration>
"""


def install_artemis() -> Path:
    """The folder of the jars that pom.xml names."""
    mvn = shutil.which("mvn")
    if mvn is None or shutil.which("java") is None:
        text = "ActiveMQ Artemis needs mvn and java 17 or newer on the PATH"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    folder = CACHE / "artemis"
    installed = folder / ".installed"
    wanted = hashlib.sha256(POM.read_bytes()).hexdigest()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "artemis.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists() or installed.read_text() != wanted:
            command = [mvn, "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
            subprocess.run(
                [*command, f"-DoutputDirectory={folder}", "-DincludeScope=runtime"], check=True, timeout=INSTALL_SECONDS
            )
            installed.write_text(wanted)
    return folder


class ArtemisBroker:
    """A broker.

    Args:
        folder: of its data.
        name: of the broker.
        more: further elements of its configuration.
        credit: messages that it lets a sender send before it has taken them.
        is_secure: whether it has a listener with TLS, too, for clients with a certificate.
        sync: whether its journal is synced to disk.

    Attributes:
        port: for clients; kept over restarts.
        tls_port: of the listener with TLS.
        ca_file: the certificate that clients have to trust there.
        certificate: a client's certificate that the broker trusts, and its key.
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "",
        more: str = "",
        sync: bool = False,
        is_secure: bool = False,
        credit: int = 1000,
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self._classpath = f"{install_artemis()}/*"
        (folder / "etc").mkdir(parents=True)
        values = {
            "name": name or folder.name,
            "folder": folder,
            "port": self.port,
            "more": more,
            "credit": credit,
            "low": credit // 3,
            "acceptors": self._secured() if is_secure else "",
            "sync": str(sync).lower(),
        }
        (folder / "etc" / "broker.xml").write_text(_CONFIG.format(**values))
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._management: _Management | None = None

    def _secured(self) -> str:
        """The listener with TLS."""
        files = ensure_certificate(self.folder / "certificate", now_ms=int(time.time() * 1000))
        self.tls_port, self.ca_file = free_port(), files.authority
        store = self.folder / "broker.pem"
        store.write_text(files.key.read_text() + files.certificate.read_text())
        self.certificate = client_certificate(self.folder)
        options = {
            "protocols": "AMQP",
            "sslEnabled": "true",
            "keyStorePath": store,
            "keyStoreType": "PEM",
            "trustStorePath": self.certificate[0],
            "trustStoreType": "PEMCA",
            "wantClientAuth": "true",
            "saslMechanisms": "EXTERNAL,PLAIN",
        }
        reported = ";".join(f"{name}={value}" for name, value in options.items())
        return f'<acceptor name="tls">tcp://127.0.0.1:{self.tls_port}?{reported}</acceptor>'

    @property
    def pid(self) -> int:
        """Of its process; it runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        command = ["java", "-Xmx768m", "-Xms256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, self._classpath, _MAIN, str(self.folder)], stdout=log, stderr=log, cwd=self.folder
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.client().close()
                return
            except IsthmusError:
                assert self._process.poll() is None, self.log()
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.2)

    def stop(self, kind: signal.Signals = signal.SIGTERM) -> None:
        """Ends it."""
        process, self._process = self._process, None
        with self._lock:
            if self._management is not None:
                self._management.close()
                self._management = None
        if process is None:
            return
        process.send_signal(kind)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def client(self) -> Client:
        """A new open connection."""
        return Client(Endpoint("127.0.0.1", self.port, tls=False), name="artemis-test").open(CALL_SECONDS)

    def call(self, resource: str, operation: str, *arguments: Any) -> Any:
        """The result of a management operation; `broker`, `queue.NAME` or `address.NAME` are resources."""
        return self._ask(resource, {"_AMQ_OperationName": operation}, list(arguments))

    def attribute(self, resource: str, name: str) -> Any:
        """An attribute of a resource."""
        return self._ask(resource, {"_AMQ_Attribute": name}, [])

    def _ask(self, resource: str, what: dict[str, str], arguments: list[Any]) -> Any:
        with self._lock:
            for attempt in (1, 2):
                try:
                    if self._management is None:
                        self._management = _Management(self.client())
                    return self._management.ask({"_AMQ_ResourceName": resource, **what}, arguments)
                except IsthmusError:  # it was restarted
                    if self._management is not None:
                        self._management.close()
                        self._management = None
                    if attempt == 2:
                        raise
        raise AssertionError

    def create_queue(self, name: str) -> None:
        """Makes a durable queue."""
        config = {"name": name, "address": name, "routing-type": "ANYCAST", "durable": True, "auto-delete": False}
        self.call("broker", "createQueue", json.dumps(config), True)

    def count(self, queue: str) -> int:
        """How many messages a queue has, those included that are with consumers."""
        return int(self.attribute(f"queue.{queue}", "messageCount"))

    def log(self) -> str:
        """The end of what it wrote."""
        return (self.folder / "server.log").read_text(errors="replace")[-3000:]


class _Management:
    """Calls over one connection, one at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        source = Source(None, dynamic=True, capabilities=["temporary-queue"])
        self._receiver = Receiver(client, "management replies", terms=LinkTerms(source=source)).wait_attached()
        self._reply_to = self._receiver.link.source.address
        self._sender = Sender(client, _MANAGEMENT, terms=LinkTerms(target=Target(_MANAGEMENT))).wait_ready(CALL_SECONDS)
        self._receiver.grant(1000)

    def ask(self, properties: dict[str, str], arguments: list[Any]) -> Any:
        number = uuid.uuid4().hex
        message = section.encode_message(
            json.dumps(arguments),
            properties={"reply_to": self._reply_to, "message_id": number, "correlation_id": number},
            application_properties=properties,
            value_body=True,
        )
        self._sender.send_all([message], timeout_seconds=CALL_SECONDS)
        self._client.wait_until(lambda: bool(self._receiver.arrived), CALL_SECONDS, "no answer to management")
        run = self._receiver.take()[0]
        self._receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1)
        self._receiver.grant(1000)
        answer = run.payloads[0]
        sections = section.locate(answer)
        done = section.decode_map(answer, sections.application_properties)
        found = json.loads(section.codec.decode(answer, sections.body[0] + 3)[0] or "[null]")
        assert done.get("_AMQ_OperationSucceeded", True), (properties, found)
        return found[0] if found else None

    def close(self) -> None:
        self._client.abandon()


@contextmanager
def artemis(folder: Path, **settings: Any) -> Iterator[ArtemisBroker]:
    """A broker that runs."""
    made = ArtemisBroker(folder, **settings)
    try:
        made.start()
        yield made
    finally:
        made.stop(signal.SIGKILL)
