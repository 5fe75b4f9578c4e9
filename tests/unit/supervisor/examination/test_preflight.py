"""Faults that prevent a run are reported together; an error that may pass is not a fault."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from isthmus.connectors.secret import SecretError, SecretUnavailableError
from isthmus.errors import (
    ConnectionLostError,
    EntityDisabledError,
    EntityNotFoundError,
    IsthmusError,
    OperationTimeoutError,
    UnauthorizedError,
)
from isthmus.supervisor.examination import preflight as preflight_module
from isthmus.supervisor.examination.preflight import Preflight, is_fault, preflight
from isthmus.topology import read
from isthmus.topology.model import Endpoint
from isthmus.topology.route import routes

TEXT = """isthmus: 1
namespaces:
  ewr: {connection: env:EWR_CONNECTION}
  jfk: {connection: env:JFK_CONNECTION}
  lga: {connection: env:LGA_CONNECTION}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk, lga]}
"""


def test_a_folder_of_checkpoints_that_is_not_there_is_made_by_apply(tmp_path: Path) -> None:
    text = (
        "isthmus: 1\nnamespaces:\n  ewr: {connection: env:EWR}\n"
        f"  log: {{kind: rabbitmq-streams, host: h, username: u, password: env:P, checkpoints: {tmp_path}/none}}\n"
        "tasks:\n  orders: {pattern: stream-to-queue, source: log, stream: orders, target: ewr, queue: orders}\n"
    )
    federation = read(text, "isthmus.yaml")
    found = preflight_module._namespace(federation, routes(federation, "orders"), "log", NamespaceClients({}).__enter__)  # type: ignore[arg-type]
    (fault,) = found.faults
    assert "no folder" in fault.message
    assert fault.hint.startswith("make it by: isthmus apply")
    assert (
        "start: existing" in fault.hint
    )  # with `start: now` apply would pass over what came since a checkpoint that was lost


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (EntityNotFoundError("flights"), True),
        (UnauthorizedError("wrong key"), True),
        (SecretError("env:X", "the environment variable is not set"), True),
        (ConnectionLostError("ewr:5671: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"), True),
        (SecretUnavailableError("keyvault:x/y", "the vault answered 503"), False),
        (ConnectionLostError("ewr:5671: Connection refused"), False),
        (OperationTimeoutError("ewr:5671: no connection within 10 s"), False),
        (EntityDisabledError("flights", "Disabled"), False),
    ],
)
def test_what_only_the_operator_can_mend_is_a_fault(error: IsthmusError, expected: bool) -> None:
    assert is_fault(error) is expected


class NamespaceClients:
    """Namespaces of which some entities exist."""

    def __init__(self, errors: dict[str, IsthmusError], identities: dict[str, str] | None = None) -> None:
        self.errors = errors
        self.identities = identities or {}

    def identity(self, alias: str) -> str:
        return self.identities.get(alias, f"{alias}-id")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def peek(self, endpoint: Endpoint) -> Any:
        def look(*_: int) -> Sequence[bytes]:
            for end in (endpoint.alias, str(endpoint)):
                if end in self.errors:
                    raise self.errors[end]
            return []

        return look


def checked(
    monkeypatch: pytest.MonkeyPatch,
    unset: Sequence[str] = (),
    identities: dict[str, str] | None = None,
    **errors: IsthmusError,
) -> Preflight:
    for name in ("EWR", "JFK", "LGA"):
        monkeypatch.setenv(f"{name}_CONNECTION", "Endpoint=sb://x/;SharedAccessKeyName=n;SharedAccessKey=k")
    for name in unset:
        monkeypatch.delenv(name)
    failing = {name.replace("__", "/"): error for name, error in errors.items()}

    def attach(clients: Any, target: Endpoint) -> str:
        if str(target) in failing:
            raise failing[str(target)]
        return str(clients.identity(target.alias))

    monkeypatch.setattr(preflight_module, "_attach", attach)
    federation = read(TEXT, "f.yaml")
    opened: Any = lambda: NamespaceClients(failing, identities)  # noqa: E731
    return preflight(federation, routes(federation), opened)


def test_where_everything_exists_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(monkeypatch) == Preflight()


def test_i1_every_fault_is_reported_at_once_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checked(
        monkeypatch,
        ["EWR_CONNECTION"],
        jfk=EntityNotFoundError("isthmus.claims"),
        lga__flights=UnauthorizedError("no Send"),
    )
    assert [str(fault) for fault in found.faults] == [
        "f.yaml:3:3: namespace ewr: env:EWR_CONNECTION: the environment variable is not set; export EWR_CONNECTION=…",
        "f.yaml:4:3: namespace jfk: The messaging entity 'isthmus.claims' could not be found.; make it by: isthmus apply",
        "f.yaml:5:3: namespace lga: no Send",
    ]
    assert found.away == ()


def test_i2_a_namespace_that_does_not_answer_is_no_fault_and_hides_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checked(monkeypatch, ["LGA_CONNECTION"], ewr=ConnectionLostError("ewr:5671: Connection refused"))
    assert found.away == (("ewr", "ewr:5671: Connection refused"),)
    assert [fault.line for fault in found.faults] == [5]


def test_i4_two_aliases_of_one_namespace_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checked(monkeypatch, identities={"lga": "ewr-id"}, jfk=ConnectionLostError("jfk:5671: Connection refused"))
    assert [str(fault) for fault in found.faults] == [
        "f.yaml:5:3: namespace lga: it is namespace ewr too; write one alias, or another connection"
    ]
    assert [alias for alias, _ in found.away] == ["jfk"]


def test_a_missing_authority_is_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ISTHMUS_CA_FILE", str(tmp_path / "none.pem"))
    found = checked(monkeypatch)
    assert len(found.faults) == 3
    assert "none.pem" in str(found.faults[0])
