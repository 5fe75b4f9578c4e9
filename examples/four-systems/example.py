"""Kafka, RabbitMQ and Event Hubs for the example, started by the tests' kit."""

import json
import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

from isthmus.errors import ConfigError, Fault
from isthmus.testing.namespace import NamespaceProcess
from isthmus.topology.model import NamespaceRef

TESTS = Path(__file__).parents[2] / "tests"


def connect(alias: str, folder: Path, stack: ExitStack) -> NamespaceRef:
    """Start a system; how to reach it."""
    _use_kit(stack)
    (folder / alias).mkdir()
    return {"jfk": _kafka, "lga": _rabbitmq, "hub": _event_hubs}[alias](alias, folder, stack)


def _use_kit(stack: ExitStack) -> None:
    missing = [each for each in ("mvn", "java") if shutil.which(each) is None]
    if missing and not os.environ.get("PYTEST_CURRENT_TEST"):
        raise ConfigError(
            [Fault(f"there is no {' and no '.join(missing)}", "install Maven and Java 17: they start Kafka")]
        )
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
        stack.callback(sys.path.remove, str(TESTS))


def _kafka(alias: str, folder: Path, stack: ExitStack) -> NamespaceRef:
    from harness.server.kafka_broker import broker

    address = stack.enter_context(broker(folder / alias)).address
    return NamespaceRef(alias=alias, kind="kafka", settings=(("bootstrap", address),))


def _rabbitmq(alias: str, folder: Path, stack: ExitStack) -> NamespaceRef:
    from harness.server.rabbitmq_server import PASSWORD, USER, rabbit_server

    server = stack.enter_context(rabbit_server(folder / alias))
    settings = {
        "host": f"127.0.0.1:{server.port}",
        "username": USER,
        "password": _secret(folder / f"{alias}.json", PASSWORD),
        "management": f"http://127.0.0.1:{server.management_port}",
    }
    return NamespaceRef(alias=alias, kind="rabbitmq", settings=tuple(settings.items()))


def _event_hubs(alias: str, folder: Path, stack: ExitStack) -> NamespaceRef:
    namespace = NamespaceProcess(folder / alias)
    stack.callback(namespace.stop)
    namespace.start()
    settings = {
        "connection": _secret(folder / f"{alias}.json", namespace.connection_string),
        "ca_file": str(namespace.ca_file),
        "checkpoints": str(folder / "checkpoints"),
    }
    return NamespaceRef(alias=alias, kind="eventhubs", settings=tuple(settings.items()))


def _secret(file: Path, value: str) -> str:
    """A reference to a secret, which is in a file that only its owner reads."""
    file.touch(mode=0o600)
    file.write_text(json.dumps({"secret": value}), encoding="utf-8")
    return f"file:{file}#secret"
