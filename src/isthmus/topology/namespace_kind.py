"""The kinds of namespaces that a federation file can declare.

What it is: for each kind its settings and what it can do, declared once: reader, lint, schema, reference page and the kind's
connector use this declaration. What it is not: a connector; that is found by kind in `isthmus.bridge.registry`.

Invariants:
    I1. A setting of a kind that is not Service Bus is an option of its connector under the name that `option_names` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from isthmus.topology.setting import Kind, Setting, Spec

__all__ = ["KAFKA", "KINDS", "SERVICE_BUS", "NamespaceKind", "kafka_faults"]

_REFERENCE = "Reference: `env:NAME`, `file:/path#key` or `keyvault:vault/name`."
_EXAMPLE = "env:NAME"
_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceKind:
    """A kind.

    Attributes:
        name: as written in the file.
        title: as people call the system.
        settings: what a namespace of this kind takes beside `kind`; empty for Service Bus, which the reader knows.
        option_names: connector options that have another name than the setting.
        is_log: whether messages stay after they are settled. A log has no dead-letter queue, no subscriptions with rules and no
            locks, and keeps order within a partition only.
    """

    name: str
    title: str
    settings: tuple[Setting, ...] = ()
    option_names: Mapping[str, str] = field(default_factory=dict)
    is_log: bool = False

    def spec(self, kind: Setting) -> Spec:
        """The settings of a namespace of this kind; `kind` is the setting that chooses it."""
        return Spec(f"namespace of kind {self.name}", f"How to reach {self.title}.", (*self.settings, kind))

    def option(self, setting: str) -> str:
        """The connector's option for a setting."""
        return self.option_names.get(setting, setting)


SERVICE_BUS = NamespaceKind(name="servicebus", title="Azure Service Bus")

KAFKA = NamespaceKind(
    name="kafka",
    title="an Apache Kafka cluster",
    is_log=True,
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
            description="With SASL: how.",
        ),
        Setting(name="username", kind=Kind.TEXT, default="", example="isthmus", description="With SASL: who."),
        Setting(
            name="password",
            kind=Kind.REFERENCE,
            secret=True,
            default="",
            example=_EXAMPLE,
            description=f"With SASL: the password. {_REFERENCE}",
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
            example=_EXAMPLE,
            description=f"The password of the private key. {_REFERENCE}",
        ),
    ),
)

KINDS: dict[str, NamespaceKind] = {kind.name: kind for kind in (SERVICE_BUS, KAFKA)}


def kafka_faults(values: Mapping[str, Any], write: Callable[[str, str], str]) -> Iterator[tuple[str, str, str]]:
    """What is wrong with the settings of a Kafka cluster together.

    Args:
        values: by the names of the settings.
        write: how a setting and its value are written where they are given.

    Yields:
        The setting at fault, what is wrong, and a hint.
    """
    has_login = next((name for name in ("username", "password") if values[name]), "")
    protocol, mechanism = str(values["security"] or ""), values["mechanism"]
    if has_login and not protocol.startswith("sasl"):
        yield has_login, "username and password need SASL", f"write {write('security', 'sasl_ssl')}"
    elif protocol.startswith("sasl") and mechanism in _PASSWORD_MECHANISMS:
        for name, example in (("username", "NAME"), ("password", _EXAMPLE)):
            if not values[name]:
                yield "security", f"SASL {mechanism} needs {name}", f"write {write(name, example)}"
    files = next((name for name in ("ca_file", "certificate_file", "key_file") if values[name]), "")
    if files and not protocol.endswith("ssl"):
        yield files, "certificates need TLS", f"write {write('security', 'ssl')} or sasl_ssl"
    if bool(values["certificate_file"]) != bool(values["key_file"]):
        yield (
            "certificate_file" if values["certificate_file"] else "key_file",
            "certificate_file and key_file go together",
            "write both or none",
        )
