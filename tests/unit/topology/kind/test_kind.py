"""isthmus.topology.kind: the settings of kinds, and the faults of their combination."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.connectors.kafka.option import ADMINISTRATION
from isthmus.topology.file.setting import Kind, Setting
from isthmus.topology.kind import KAFKA, KINDS, SERVICE_BUS
from isthmus.topology.kind.kafka import kafka_faults
from isthmus.topology.kind.queuestorage import queue_storage_faults

PASSWORD = {"username": "u", "password": "env:P"}


def faults(**written: str) -> list[tuple[str, str, str]]:
    values: dict[str, Any] = {each.name: each.default for each in KAFKA.settings}
    return list(kafka_faults(values | written, lambda name, value: f"{name}: {value}"))


def test_every_setting_is_an_option_of_the_connector_under_the_name_that_the_kind_gives() -> None:
    """I1."""
    assert [KAFKA.option(each.name) for each in KAFKA.settings] == [each.name for each in ADMINISTRATION.settings]
    assert KAFKA.option("bootstrap") == "bootstrap_servers"
    assert KAFKA.option("ca_file") == "ca_file"


def test_the_setting_that_chooses_the_kind_is_one_of_every_kind() -> None:
    kind = Setting(name="kind", kind=Kind.CHOICE, choices=tuple(KINDS), description="Which.")
    assert kind in KAFKA.spec(kind).settings
    assert not SERVICE_BUS.is_log


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"security": "ssl", "ca_file": "ca.pem"},
        {"security": "ssl", "certificate_file": "c.pem", "key_file": "k.pem"},
        {"security": "sasl_ssl", **PASSWORD},
        {"security": "sasl_plaintext", "mechanism": "GSSAPI"},
    ],
)
def test_what_goes_together(written: dict[str, str]) -> None:
    assert faults(**written) == []


@pytest.mark.parametrize(
    ("written", "at", "hint"),
    [
        ({"username": "u"}, "username", "write security: sasl_ssl"),
        ({"password": "env:P", "security": "ssl"}, "password", "write security: sasl_ssl"),
        ({"security": "sasl_ssl", "username": "u"}, "security", "write password: env:NAME"),
        (
            {"security": "sasl_ssl", "mechanism": "SCRAM-SHA-512", "password": "env:P"},
            "security",
            "write username: NAME",
        ),
        ({"ca_file": "ca.pem"}, "ca_file", "write security: ssl or sasl_ssl"),
        ({"security": "sasl_plaintext", **PASSWORD, "ca_file": "ca.pem"}, "ca_file", "write security: ssl or sasl_ssl"),
        ({"security": "ssl", "key_file": "k.pem"}, "key_file", "write both or none"),
        ({"security": "ssl", "certificate_file": "c.pem"}, "certificate_file", "write both or none"),
    ],
)
def test_what_does_not(written: dict[str, str], at: str, hint: str) -> None:
    ((setting, _, reported),) = faults(**written)
    assert (setting, reported) == (at, hint)


@pytest.mark.parametrize(
    ("url", "is_sound"),
    [
        ("https://flights.queue.core.windows.net", True),
        ("http://127.0.0.1:10001/devstoreaccount1", True),
        ("https://flights.queue.core.windows.net?sv=1&sig=hunter2", False),
        ("https://me:hunter2@flights.queue.core.windows.net", False),
        ("flights", False),
    ],
)
def test_an_account_is_named_without_a_secret(url: str, is_sound: bool) -> None:
    """Addresses end up in logs."""
    found = list(queue_storage_faults({"connection": "", "account_url": url}, lambda name, value: f"{name}: {value}"))
    assert (not found) == is_sound
    assert "hunter2" not in str(found)
