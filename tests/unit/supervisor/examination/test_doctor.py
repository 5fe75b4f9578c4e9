"""isthmus.supervisor.examination.doctor without a namespace; with one: tests/interop/operator/test_doctor.py."""

from __future__ import annotations

import http.client
from types import SimpleNamespace

import pytest

from isthmus.errors import ConnectionLostError
from isthmus.supervisor.examination import doctor
from isthmus.supervisor.examination.doctor import _http
from isthmus.supervisor.examination.examination import Verdict
from isthmus.topology import read
from isthmus.transport import Endpoint


@pytest.mark.parametrize(
    ("authority", "tls", "expected"),
    [
        ("localhost", False, ("localhost", 5300, False)),
        ("127.0.0.1:5710", False, ("127.0.0.1", 5710, False)),
        ("contoso.example", True, ("contoso.example", 443, True)),
        ("ewr.example:5711", True, ("ewr.example", 5711, True)),
    ],
)
def test_the_clock_is_asked_as_the_connection_string_says(
    authority: str, tls: bool, expected: tuple[str, int, bool]
) -> None:
    """A namespace on this machine, whose string means no TLS, would be asked over TLS, and its certificate not be trusted."""
    host = authority.partition(":")[0]
    asked = _http(Endpoint(host, 5672, tls=tls, authority=authority))
    assert (asked.host, asked.port, isinstance(asked, http.client.HTTPSConnection)) == expected


def test_a_member_of_a_pair_is_used_though_no_task_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = read(
        "isthmus: 1\nnamespaces:\n  ewr: {host: ewr.example.com}\n  jfk: {host: jfk.example.com}\n  lga: {host: lga.example.com}\n"
        "pairs:\n  contoso: {primary: ewr, secondary: jfk}\n"
    )
    monkeypatch.setattr(doctor._Examination, "service_bus", lambda _: iter(()))
    assert [(each.alias, each.text) for each in doctor.examine(federation)] == [("lga", "no task and no pair uses it")]


@pytest.mark.parametrize("kind", ["eventhubs", "servicebus"])
def test_a_certificate_that_is_not_trusted_has_a_remedy(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def untrusted(*_: object, **__: object) -> str:
        raise ConnectionLostError(
            "ewr.example:5671: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate"
        )

    monkeypatch.setenv("EWR", "Endpoint=sb://ewr.example/;SharedAccessKeyName=x;SharedAccessKey=eA==")
    monkeypatch.setattr(doctor, "system_of", lambda _: SimpleNamespace(identity=untrusted))
    monkeypatch.setattr(doctor.Client, "open", untrusted)
    federation = read(
        f"isthmus: 1\nnamespaces:\n  ewr: {{kind: {kind}, connection: env:EWR}}\n  jfk: {{host: jfk.example}}\n"
        "  lga: {host: lga.example}\npairs:\n  contoso: {primary: jfk, secondary: lga}\n"
    )
    (found,) = [each for each in doctor.examine(federation) if (each.alias, each.subject) == ("ewr", "connect")]
    assert (found.verdict, found.hint[:15]) == (Verdict.FAULT, "write ca_file: ")


def test_a_password_that_goes_without_tls_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor, "system_of", lambda _: SimpleNamespace(identity=lambda _: "mq", check=lambda *_, **__: None)
    )
    federation = read(
        "isthmus: 1\nnamespaces:\n  mq: {kind: rabbitmq, host: 'rabbit-1,localhost', username: u, password: env:P}\n"
        "  ewr: {host: ewr.example}\ntasks:\n  t: {pattern: move, source: mq, queue: q, target: ewr}\n"
    )
    monkeypatch.setattr(doctor._Examination, "service_bus", lambda _: iter(()))

    def reported() -> list[tuple[str, Verdict]]:
        return [(each.text[:16], each.verdict) for each in doctor.examine(federation) if each.subject == "password"]

    assert reported() == [("goes to rabbit-1", Verdict.WARNING)]
    monkeypatch.setenv("ISTHMUS_ALLOW_PLAIN_HOSTS", "rabbit-1")
    assert reported() == []
