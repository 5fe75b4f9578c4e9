"""TLS and SASL of the Kafka connector against a real broker, and that no secret is shown."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from harness.bridge.kafka_join import consumed, join, publish, route
from harness.server.kafka_broker import PASSWORD, USER, KafkaBroker, broker
from isthmus.bridge.route_spec import End
from isthmus.connectors.administration import Administrations
from isthmus.connectors.kafka.group import GroupOffsets
from isthmus.connectors.kafka.option import SOURCE, read_source
from isthmus.connectors.kafka.peek import TopicPeek
from isthmus.connectors.spec import shown
from isthmus.errors import ConfigError, IsthmusError
from isthmus.replication.route_spec import route_spec
from isthmus.testing.namespace import namespace
from isthmus.topology import plan, read
from isthmus.topology.route import routes

VARIABLE = "KAFKA_TEST_PASSWORD"
SECURITIES = [
    ("ssl", ""),
    *((kind, how) for kind in ("sasl_plaintext", "sasl_ssl") for how in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")),
]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with broker(tmp_path_factory.mktemp("kafka"), is_secure=True) as running:
        yield running


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, PASSWORD)


def secure_options(kafka: KafkaBroker, security: str, mechanism: str = "") -> dict[str, str]:
    options = {"bootstrap_servers": kafka.secure[security], "security_protocol": security}
    if mechanism:
        options |= {"sasl_mechanism": mechanism, "username": USER, "password": f"env:{VARIABLE}"}
    if security.endswith("ssl"):
        options["ca_file"] = str(kafka.ca_file)
    return options


@pytest.mark.parametrize(("security", "mechanism"), SECURITIES)
def test_a_route_moves_over_every_listener(kafka: KafkaBroker, security: str, mechanism: str) -> None:
    name = f"{security}.{mechanism}".lower()
    source, target = kafka.create(f"{name}.source"), kafka.create(f"{name}.target")
    publish(kafka.address, source, 0, 100)
    options = secure_options(kafka, security, mechanism)
    ends = (
        End("kafka", "from", {**options, "topic": source, "group": name}),
        End("kafka", "to", {**options, "topic": target}),
    )
    with join(route(*ends)):
        arrived = consumed(kafka.address, target, 100)
    assert [int(each.value()) for each in arrived[0]] == list(range(100))


def test_a_client_certificate_is_presented(kafka: KafkaBroker) -> None:
    topic = kafka.create("mutual")
    publish(kafka.address, topic, 0, 3)
    certificate, key = map(str, kafka.client)
    options = secure_options(kafka, "ssl") | {"certificate_file": certificate, "key_file": key}
    peek = TopicPeek(options, topic)
    assert len(peek(0, 10)) == 3
    peek.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_named_and_not_reported(
    kafka: KafkaBroker, mechanism: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "hunter3-which-is-wrong")
    caplog.set_level(logging.DEBUG)
    began = time.monotonic()
    with pytest.raises(IsthmusError) as raised:
        TopicPeek(secure_options(kafka, "sasl_ssl", mechanism), "any")
    assert raised.value.code == "unauthorized"
    assert not raised.value.retryable
    assert time.monotonic() - began < 60
    assert "hunter3" not in f"{raised.value} {raised.value!r} {caplog.text}"


def test_an_authority_that_is_not_trusted_is_refused(kafka: KafkaBroker) -> None:
    options = secure_options(kafka, "ssl") | {"ca_file": str(kafka.client[0])}
    with pytest.raises(IsthmusError, match=r"(?i)ssl|certificate"):
        GroupOffsets(options).committed("g", "any")


def federation_text(kafka: KafkaBroker) -> str:
    return f"""\
isthmus: 1
namespaces:
  hub:
    kind: kafka
    bootstrap: {kafka.secure["sasl_ssl"]}
    security: sasl_ssl
    mechanism: SCRAM-SHA-512
    username: {USER}
    password: env:{VARIABLE}
    ca_file: {kafka.ca_file}
  ewr: {{connection: env:EWR_CONNECTION}}
tasks:
  departures: {{pattern: stream-to-queue, source: hub, stream: plan.flights, target: ewr, queue: departures, partitions: 3}}
"""


def test_a_federation_file_holds_and_shows_no_password(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with namespace(config="queues: {departures: {requires_duplicate_detection: true}}") as served:
        monkeypatch.setenv("EWR_CONNECTION", served.admin_connection_string)
        monkeypatch.setenv("ISTHMUS_CA_FILE", str(served.ca_file))
        reported = _reported(kafka)
    assert PASSWORD not in "\n".join([*reported, caplog.text])
    assert f"env:{VARIABLE}" in reported[1]


def _reported(kafka: KafkaBroker) -> list[str]:
    """All texts that a federation with a password behind a reference shows."""
    federation = read(federation_text(kafka))
    reported = [repr(federation), str(federation.namespaces["hub"].options())]
    with Administrations(federation) as administrations:
        made = plan(federation, administrations.observe())
        reported += [repr(made), str(made.to_dict()), str(administrations.apply(made).to_dict())]
        again = plan(federation, administrations.observe())
    assert (again.changes, again.faults) == ((), ())
    (one,) = routes(federation)
    spec = route_spec(one, federation)
    reported += [str(asdict(spec)), str(spec.to_json()), repr(read_source(spec.source.options))]
    return [*reported, str(shown(SOURCE, spec.source.options))]


def test_a_password_in_the_file_is_refused_without_being_reported() -> None:
    text = (
        "isthmus: 1\nnamespaces:\n  hub: {kind: kafka, bootstrap: 'k:9092', security: sasl_ssl, username: u, "
        f"password: {PASSWORD}}}\ntasks: {{}}\n"
    )
    with pytest.raises(ConfigError) as raised:
        read(text)
    assert PASSWORD not in str(raised.value)
    assert any("secret is in the file" in fault.message for fault in raised.value.faults)
