"""A broker of Kafka for the example: the cluster that KAFKA_BOOTSTRAP names, or one that the tests' kit starts."""

import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

from isthmus.errors import ConfigError, Fault
from isthmus.topology.model import NamespaceRef

TESTS = Path(__file__).parents[2] / "tests"


def connect(alias: str, folder: Path, stack: ExitStack) -> NamespaceRef:
    bootstrap = os.environ.get("KAFKA_BOOTSTRAP", "") or _start(folder / alias, stack)
    return NamespaceRef(alias=alias, kind="kafka", settings=(("bootstrap", bootstrap),))


def _start(folder: Path, stack: ExitStack) -> str:
    if not os.environ.get("PYTEST_CURRENT_TEST") and not (shutil.which("mvn") and shutil.which("java")):
        raise ConfigError([Fault("there is no Kafka", "set KAFKA_BOOTSTRAP, or install mvn and Java 17")])
    sys.path.insert(0, str(TESTS))
    stack.callback(sys.path.remove, str(TESTS))
    from harness.server.kafka_broker import broker

    folder.mkdir()
    return stack.enter_context(broker(folder)).address
