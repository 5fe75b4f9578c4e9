"""The namespace that a command line names; no connection is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.broker.running import write_running
from isthmus.broker.security.keyring import KEY_FILE, Keyring
from isthmus.clock import SystemClock
from isthmus.errors import ConfigError, InvalidArgumentError
from isthmus.operations.address import CONNECTION_VARIABLE, Address, find_address

KEY = "c2VuZGVyLWtleS1vZi1hLXRlc3QtMzItYnl0ZXMtMTI="
STRING = f"Endpoint=sb://ewr.example;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={KEY}"
FILE = """\
isthmus: 1
namespaces:
  ewr: {connection: env:EWR}
  jfk: {host: jfk.servicebus.windows.net, identity: default, transport_type: websockets}
  log: {kind: kafka, bootstrap: "localhost:9092"}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}
"""


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CONNECTION_VARIABLE, raising=False)
    monkeypatch.delenv("ISTHMUS_CA_FILE", raising=False)
    monkeypatch.setenv("EWR", STRING)
    (tmp_path / "isthmus.yaml").write_text(FILE)
    return tmp_path


def host(address: Address) -> str:
    assert address.connection is not None
    return address.connection.host


def test_a_reference_to_a_connection_string() -> None:
    assert host(find_address(connection="env:EWR")) == "ewr.example"


def test_the_variable_is_used_where_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InvalidArgumentError, match="no namespace is named; write --connection env:NAME, --namespace ALIAS"
    ):
        find_address()
    monkeypatch.setenv(CONNECTION_VARIABLE, STRING)
    assert host(find_address()) == "ewr.example"


def test_an_alias_of_the_federation_file() -> None:
    assert host(find_address(alias="ewr")) == "ewr.example"
    assert find_address(alias="jfk") == Address(host="jfk.servicebus.windows.net", identity="default", websocket=True)


@pytest.mark.parametrize(
    ("alias", "reported"),
    [
        ("ew", "isthmus.yaml has no namespace 'ew'; write ewr"),
        ("log", "namespace log is of kind kafka; this command is for Service Bus namespaces, use the tools of kafka"),
    ],
)
def test_an_alias_that_is_of_no_use(alias: str, reported: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        find_address(alias=alias)
    assert str(refused.value) == reported


def test_a_federation_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        find_address(alias="ewr", federation="other.yaml")


@pytest.mark.parametrize("plain", [True, False])
def test_the_folder_of_a_namespace_that_runs(tmp_path: Path, plain: bool) -> None:
    data = tmp_path / "data"
    data.mkdir()
    keyring = Keyring.open(data / KEY_FILE, SystemClock())
    keyring.save(data / KEY_FILE)
    ports = {"amqp": 5710, "tls": 5711, "http": 5712}
    write_running(data, {"host": "127.0.0.1", "ports": ports, "plain": plain, "ca_file": "/ca.pem"})
    found = find_address(data=data)
    assert found.connection is not None
    assert (found.connection.port, found.connection.tls) == ((5710, False) if plain else (5711, True))
    assert found.ca_file == ("" if plain else "/ca.pem")
    key = next(iter(json.loads((data / KEY_FILE).read_text())["rules"]))["primary_key"]
    assert key not in repr(found)  # I1


def test_the_folder_of_one_that_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        find_address(data=tmp_path)
    assert str(refused.value).endswith(f"start it with: isthmus namespace serve --data {tmp_path}")


def test_i2_two_ways_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidArgumentError, match="--namespace and --data each name a namespace; write only one of them"
    ):
        find_address(alias="ewr", data=tmp_path)
