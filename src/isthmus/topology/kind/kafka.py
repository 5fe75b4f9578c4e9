"""The kind `kafka`: an Apache Kafka cluster.

What it is: the settings of a cluster and the faults of their combination. What it is not: the connector's other options
(`isthmus.connectors.kafka.option`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from isthmus.topology.file.setting import Kind, Setting
from isthmus.topology.kind.base import PASSWORD_EXAMPLE, REFERENCE, NamespaceKind, SettingFault, Shape

__all__ = ["KAFKA", "kafka_faults"]

_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def kafka_faults(values: Mapping[str, Any], write: Callable[[str, str], str]) -> Iterator[SettingFault]:
    """The faults of a Kafka cluster's combined settings.

    Args:
        values: values by setting name.
        write: formats a setting and its value for a hint.

    Yields:
        The faulty setting, the fault, and a hint.
    """
    has_login = next((name for name in ("username", "password") if values[name]), "")
    protocol, mechanism = str(values["security"] or ""), values["mechanism"]
    if has_login and not protocol.startswith("sasl"):
        yield has_login, "username and password need SASL", f"write {write('security', 'sasl_ssl')}"
    elif protocol.startswith("sasl") and mechanism in _PASSWORD_MECHANISMS:
        for name, example in (("username", "NAME"), ("password", PASSWORD_EXAMPLE)):
            if not values[name]:
                yield "security", f"SASL {mechanism} needs {name}", f"write {write(name, example)}"
    files = next((name for name in ("ca_file", "certificate_file", "key_file") if values[name]), "")
    if files and not protocol.endswith("ssl"):
        yield files, "certificates need TLS", f"write {write('security', 'ssl')} or sasl_ssl"
    if bool(values["certificate_file"]) != bool(values["key_file"]):
        yield (
            "certificate_file" if values["certificate_file"] else "key_file",
            "certificate_file and key_file must be used together",
            "write both or none",
        )


def _plain_places(values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """SCRAM shows no password, GSSAPI neither."""
    if values.get("security") == "sasl_plaintext" and values.get("mechanism", "PLAIN") in ("PLAIN", "OAUTHBEARER"):
        for each in values["bootstrap"].split(","):
            host, colon, _ = each.strip().rpartition(":")
            yield (host if colon else each.strip()).strip("[]"), "security: sasl_ssl"


KAFKA = NamespaceKind(
    name="kafka",
    title="an Apache Kafka cluster",
    shape=Shape.LOG,
    dead_letters=False,
    address="bootstrap",
    granted_by={
        "listen": "ACLs Read and Describe on the topic, Read on the consumer group",
        "send": "ACLs Write and Describe on the topic, IdempotentWrite on the cluster",
        "manage": "ACLs Create and Describe on the topic, Read on the consumer group",
    },
    faults=kafka_faults,
    plain_places=_plain_places,
    option_names={
        "bootstrap": "bootstrap_servers",
        "security": "security_protocol",
        "mechanism": "sasl_mechanism",
    },
    settings=(
        Setting(
            name="bootstrap",
            kind=Kind.TEXT,
            required=True,
            example="kafka-1:9092,kafka-2:9092",
            description="Addresses of some brokers, separated by commas.",
        ),
        Setting(
            name="security",
            kind=Kind.CHOICE,
            choices=("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
            default="plaintext",
            example="sasl_ssl",
            description="Whether TLS (`ssl`) and authentication (`sasl`) are used.",
        ),
        Setting(
            name="mechanism",
            kind=Kind.CHOICE,
            choices=(*_PASSWORD_MECHANISMS, "GSSAPI", "OAUTHBEARER"),
            default="PLAIN",
            example="SCRAM-SHA-512",
            description="With SASL: the mechanism.",
        ),
        Setting(
            name="username", kind=Kind.TEXT, default="", example="isthmus", description="With SASL: the user name."
        ),
        Setting(
            name="password",
            kind=Kind.REFERENCE,
            secret=True,
            default="",
            example=PASSWORD_EXAMPLE,
            description=f"With SASL: the password. {REFERENCE}",
        ),
        Setting(
            name="ca_file",
            kind=Kind.PATH,
            default="",
            example="kafka/ca.pem",
            description="With TLS: certificates to trust instead of the system's.",
        ),
        Setting(
            name="certificate_file",
            kind=Kind.PATH,
            default="",
            example="kafka/client.pem",
            description="With mutual TLS: this client's certificate, PEM.",
        ),
        Setting(
            name="key_file",
            kind=Kind.PATH,
            default="",
            example="kafka/client-key.pem",
            description="With mutual TLS: its private key, PEM.",
        ),
        Setting(
            name="key_password",
            kind=Kind.REFERENCE,
            secret=True,
            default="",
            example=PASSWORD_EXAMPLE,
            description=f"The password of the private key. {REFERENCE}",
        ),
    ),
)
