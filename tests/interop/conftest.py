"""One namespace for each module of interop tests, with the entities they use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

from harness.client.sdk_program import Program, build_go, install_javascript
from isthmus.testing.namespace import NamespaceProcess, namespace

ENTITIES = """
limits: {min_lock_duration: 1s}
queues:
  plain: {lock_duration: 30s, max_delivery_count: 3}
  modes: {}
  settled: {max_delivery_count: 10}
  deferred: {}
  buried: {}
  short: {lock_duration: 3s}
  iterated: {lock_duration: 6s}
  expiring: {dead_lettering_on_message_expiration: true}
  scheduled: {}
  peeked: {}
  peeked-often: {}
  drained: {}
  detecting: {requires_duplicate_detection: true}
  large: {}
  tls: {}
  huge: {max_message_size_in_kilobytes: 102400}
  websocket: {}
  many: {}
  closed: {status: Disabled}
topics:
  flights:
    subscriptions:
      all: {}
      heavy:
        rules:
          heavy: {filter: "weight > 10", action: "SET checked = 'yes'"}
      ewr:
        rules:
          origin: {correlation: {label: EWR}}
      ruled: {}
"""


@pytest.fixture(scope="module")
def served() -> Iterator[NamespaceProcess]:
    with namespace(config=ENTITIES) as running:
        yield running


@pytest.fixture(scope="module")
def client(served: NamespaceProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(served.connection_string, retry_total=0) as client:
        yield client


@pytest.fixture
async def aclient(served: NamespaceProcess) -> AsyncIterator[AsyncServiceBusClient]:
    async with AsyncServiceBusClient.from_connection_string(served.connection_string, retry_total=0) as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def tidy(collected: None) -> None:
    """Every module here breaks connections of azure-servicebus."""


@pytest.fixture(scope="module", params=["javascript", "go"])
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def program(language: str, served: NamespaceProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The program with the SDKs of a language, which trusts the namespace's certificate."""
    command = install_javascript() if language == "javascript" else build_go()
    trusted = {"NODE_EXTRA_CA_CERTS": str(served.ca_file), "SSL_CERT_FILE": str(served.ca_file)}
    direct = {"NO_PROXY": "127.0.0.1"}
    started = Program(command, {**trusted, **direct}, tmp_path_factory.mktemp(language) / "log.txt")
    yield started
    started.close()
