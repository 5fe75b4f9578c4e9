"""A real Kafka broker for the length of a test: one node that is broker and controller (KRaft), from Maven Central.

`mvn` copies the jars once into .cache, with the user's own settings. Where there is no mvn the tests are passed over, but not in CI.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import struct
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewTopic

from harness.server.client_certificate import client_certificate
from isthmus.broker.security.certificate import ensure_certificate
from isthmus.testing.port import free_ports

__all__ = ["PASSWORD", "USER", "KafkaBroker", "broker", "install_kafka"]

ROOT = Path(__file__).parents[3]
POM = ROOT / "tests" / "interop" / "kafka" / "pom.xml"
CACHE = ROOT / ".cache" / "interop"
INSTALL_SECONDS = 500
START_SECONDS = 90
STOP_SECONDS = 30
# Who may log in at the listeners with SASL.
USER, PASSWORD = "isthmus", "hunter2-of-kafka"
_SECURE = {"SSL": "ssl", "SASL_PLAINTEXT": "sasl_plaintext", "SASL_SSL": "sasl_ssl"}
_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def install_kafka() -> Path:
    """The folder of the jars that pom.xml names."""
    mvn = shutil.which("mvn")
    if mvn is None or shutil.which("java") is None:
        text = "Kafka's broker needs mvn and java 17 or newer on the PATH"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    folder = CACHE / "kafka"
    installed = folder / ".installed"
    wanted = hashlib.sha256(POM.read_bytes()).hexdigest()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists() or installed.read_text() != wanted:
            command = [mvn, "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
            subprocess.run(
                [*command, f"-DoutputDirectory={folder}", "-DincludeScope=runtime"], check=True, timeout=INSTALL_SECONDS
            )
            installed.write_text(wanted)
    return folder


class KafkaBroker:
    """A broker.

    Args:
        jars: folder of its jars.
        folder: of its data.

    Attributes:
        address: for clients; kept over restarts.
        secure: with `is_secure`, the addresses of the other listeners by their security: `ssl`, `sasl_plaintext`, `sasl_ssl`.
        ca_file: with `is_secure`, the certificate that clients have to trust.
        client: with `is_secure`, a client's certificate that the broker trusts, and its key.
    """

    def __init__(self, jars: Path, folder: Path, *, is_secure: bool = False) -> None:
        self.folder = folder
        self._classpath = f"{jars}/*"
        port, controller = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self._config = folder / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        self.secure: dict[str, str] = {}
        security = self._secured() if is_secure else []
        listeners = "".join(f",{name}://{self.secure[kind]}" for name, kind in _SECURE.items() if is_secure)
        self._config.write_text(
            "\n".join(
                (
                    "process.roles=broker,controller",
                    "node.id=1",
                    f"controller.quorum.bootstrap.servers=127.0.0.1:{controller}",
                    f"controller.quorum.voters=1@127.0.0.1:{controller}",
                    f"listeners=PLAINTEXT://127.0.0.1:{port}{listeners},CONTROLLER://127.0.0.1:{controller}",
                    f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}{listeners}",
                    "controller.listener.names=CONTROLLER",
                    "inter.broker.listener.name=PLAINTEXT",
                    f"log.dirs={folder / 'data'}",
                    "offsets.topic.replication.factor=1",
                    "offsets.topic.num.partitions=2",
                    "transaction.state.log.replication.factor=1",
                    "transaction.state.log.min.isr=1",
                    "group.initial.rebalance.delay.ms=0",
                    "auto.create.topics.enable=false",
                    "num.partitions=1",
                    *security,
                    # A broker that was killed comes back once its session has ended.
                    "broker.session.timeout.ms=4000",
                    "broker.heartbeat.interval.ms=500",
                )
            )
        )
        users = [f"--add-scram={name}=[name={USER},password={PASSWORD}]" for name in _SCRAM if is_secure]
        formatting = self._java(
            # An id that begins with a hyphen would be taken for an option if it were an argument of its own.
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={_cluster_id()}",
            "-c",
            str(self._config),
            *users,
        )
        assert formatting.wait(START_SECONDS) == 0, self.log()

    def _secured(self) -> list[str]:
        """The settings of the listeners with TLS and SASL."""
        files = ensure_certificate(self.folder / "certificate", now_ms=int(time.time() * 1000))
        self.ca_file = files.authority
        store = self.folder / "broker.pem"
        store.write_text(files.key.read_text() + files.certificate.read_text())
        self.client = client_certificate(self.folder)
        self.secure = {
            kind: f"127.0.0.1:{port}" for kind, port in zip(_SECURE.values(), free_ports(len(_SECURE)), strict=True)
        }
        module = "org.apache.kafka.common.security"
        login = f'username="{USER}" password="{PASSWORD}" user_{USER}="{PASSWORD}"'
        settings = [
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
            + ",".join(f"{name}:{name}" for name in _SECURE),
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={store}",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.client[0]}",
            "ssl.client.auth=requested",
            f"sasl.enabled.mechanisms=PLAIN,{','.join(_SCRAM)}",
        ]
        for name in ("sasl_plaintext", "sasl_ssl"):
            settings.append(
                f"listener.name.{name}.plain.sasl.jaas.config={module}.plain.PlainLoginModule required {login};"
            )
            settings += [
                f"listener.name.{name}.{each.lower()}.sasl.jaas.config={module}.scram.ScramLoginModule required;"
                for each in _SCRAM
            ]
        return settings

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        self._process = self._java("kafka.Kafka", str(self._config))
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.admin().list_topics(timeout=1)
                return
            except KafkaException:
                assert self._process.poll() is None, self.log()
                assert time.monotonic() < deadline, self.log()

    def stop(self, kind: signal.Signals = signal.SIGTERM) -> None:
        """Ends it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(kind)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def admin(self) -> AdminClient:
        """A client of its administration."""
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def create(self, topic: str, partitions: int = 1, **config: str) -> str:
        """Makes a topic; its name."""
        wanted = NewTopic(
            topic, partitions, 1, config={name.replace("_", "."): value for name, value in config.items()}
        )
        admin = self.admin()
        admin.create_topics([wanted])[topic].result(30)
        self._wait_for_leaders(admin, topic, partitions)
        return topic

    def _wait_for_leaders(self, admin: AdminClient, topic: str, partitions: int) -> None:
        """A partition has no leader for a moment after its topic was made; what is sent meanwhile is sent again, behind what came later."""
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}  # type: ignore[no-untyped-call]
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                for each in admin.list_offsets(asked, request_timeout=5).values():
                    each.result(6)
                return
            except (KafkaException, TimeoutError):
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.02)

    def truncate(self, topic: str, offset: int, partition: int = 0) -> None:
        """Removes the batches from an offset on, as a disk does that loses its last writes; the broker was killed before."""
        folder = self.folder / "data" / f"{topic}-{partition}"
        path = folder / f"{0:020d}.log"
        data, at, batches = path.read_bytes(), 0, {}
        while at < len(data):
            base, length = struct.unpack_from(">qi", data, at)  # Apache Kafka documentation, "Record Batch"
            batches[base] = at
            at += 12 + length
        path.write_bytes(data[: batches[offset]])
        for each in (*folder.glob("*.index"), *folder.glob("*.timeindex"), *folder.glob("*.snapshot")):
            each.unlink()

    def log(self) -> str:
        """The end of what it wrote."""
        return (self.folder / "server.log").read_text(errors="replace")[-3000:]

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [
            "java",
            "-Xmx512m",
            "-Xms128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            self._classpath,
        ]
        with (self.folder / "server.log").open("ab") as log:
            return subprocess.Popen([*command, *arguments], stdout=log, stderr=log, cwd=self.folder)


@contextmanager
def broker(folder: Path, *, is_secure: bool = False) -> Iterator[KafkaBroker]:
    """A broker that runs; `is_secure`: with listeners for TLS and SASL, too."""
    made = KafkaBroker(install_kafka(), folder, is_secure=is_secure)
    try:
        made.start()
        yield made
    finally:
        made.stop(signal.SIGKILL)


def _cluster_id() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
