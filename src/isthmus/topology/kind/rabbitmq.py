"""The kind `rabbitmq`: a virtual host of a RabbitMQ broker.

What it is: the settings of a broker and the faults of their combination. What it is not: the connector's other options
(`isthmus.connectors.rabbitmq.option`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from isthmus.topology.file.setting import Kind, Setting
from isthmus.topology.kind.base import PASSWORD_EXAMPLE, REFERENCE, NamespaceKind, SettingFault, Shape

__all__ = ["PORT", "RABBITMQ", "TLS_PORT", "addresses_of", "plain_places", "rabbitmq_faults"]

PORT, TLS_PORT = 5672, 5671
_MANAGEMENT = "https://rabbit-1.example.com:15671"


def addresses_of(host: str, tls: bool) -> list[tuple[str, int]]:
    """Hosts and ports of a list of addresses.

    Raises:
        ValueError: the text is no list of addresses.
    """
    found = []
    for each in host.split(","):
        name, colon, port = each.strip().rpartition(":")
        if not colon or port.endswith("]"):
            name, port = each.strip(), str(TLS_PORT if tls else PORT)
        name, number = name.strip("[]"), int(port)
        if not name or not 0 < number < 65536:
            raise ValueError(host)
        found.append((name, number))
    return found


def rabbitmq_faults(values: Mapping[str, Any], write: Callable[[str, str], str]) -> Iterator[SettingFault]:
    """The faults of a broker's combined settings.

    Args:
        values: values by setting name.
        write: formats a setting and its value for a hint.

    Yields:
        The faulty setting, the fault, and a hint.
    """
    if values["host"] and "@" not in str(values["host"]):
        try:
            addresses_of(str(values["host"]), bool(values["tls"]))
        except ValueError:
            yield (
                "host",
                f"{values['host']} is no list of addresses",
                f"write {write('host', 'rabbit-1.example.com:5672')}",
            )
    if values["mechanism"] == "PLAIN":
        for name, example in (("username", "NAME"), ("password", PASSWORD_EXAMPLE)):
            if not values[name]:
                yield "mechanism", f"PLAIN needs {name}", f"write {write(name, example)}"
    else:
        for name in ("username", "password"):
            if values[name] and not values["management"]:
                yield name, f"{name} needs PLAIN", f"remove it, or write {write('mechanism', 'PLAIN')}"
        if not values["certificate_file"]:
            yield (
                "mechanism",
                "EXTERNAL needs certificate_file and key_file",
                f"write {write('certificate_file', 'client.pem')}",
            )
    files = next((name for name in ("ca_file", "certificate_file", "key_file") if values[name]), "")
    if files and not values["tls"]:
        yield files, "certificates need TLS", f"write {write('tls', 'true')}"
    if bool(values["certificate_file"]) != bool(values["key_file"]):
        yield (
            "certificate_file" if values["certificate_file"] else "key_file",
            "certificate_file and key_file must be used together",
            "write both or none",
        )
    for name, example in (("host", "rabbit-1.example.com:5671"), ("management", _MANAGEMENT)):
        if "@" in str(values[name]):
            hint = f"write {write(name, example)}, and username and password as separate settings"
            yield name, f"{name} has user information", hint
    if values["management"] and not str(values["management"]).startswith(("http://", "https://")):
        yield "management", "management is no URL", f"write {write('management', _MANAGEMENT)}"


def plain_places(values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The hosts to which the password goes without TLS (`NamespaceKind.plain_places`)."""
    if not values.get("password"):
        return
    if values.get("mechanism", "PLAIN") == "PLAIN" and values.get("tls", "").lower() != "true":
        for host, _ in addresses_of(values["host"], tls=False):
            yield host, "tls: true"
    management = urlsplit(values.get("management", ""))
    if management.scheme == "http":
        yield management.hostname or "", "management: https://..."


RABBITMQ = NamespaceKind(
    name="rabbitmq",
    title="a virtual host of a RabbitMQ broker",
    shape=Shape.QUEUE,
    dead_letters=False,
    dead_letters_by="dead_letter_exchange",
    takes_dead_letters=True,
    audits_by="management",
    address="host virtual_host",
    faults=rabbitmq_faults,
    plain_places=plain_places,
    settings=(
        Setting(
            name="host",
            kind=Kind.TEXT,
            required=True,
            example="rabbit-1.example.com:5671,rabbit-2.example.com:5671",
            description="Addresses of the nodes, separated by commas; they are tried one after the other. The default port is "
            "5672, with TLS 5671.",
        ),
        Setting(name="virtual_host", kind=Kind.TEXT, default="/", example="orders", description="The virtual host."),
        Setting(
            name="mechanism",
            kind=Kind.CHOICE,
            choices=("PLAIN", "EXTERNAL"),
            default="PLAIN",
            description="How to log in: by user name and password, or by the client's certificate.",
        ),
        Setting(
            name="username", kind=Kind.TEXT, default="", example="isthmus", description="With PLAIN: the user name."
        ),
        Setting(
            name="password",
            kind=Kind.REFERENCE,
            secret=True,
            default="",
            example=PASSWORD_EXAMPLE,
            description=f"With PLAIN: the password. {REFERENCE}",
        ),
        Setting(name="tls", kind=Kind.BOOLEAN, default=False, example="true", description="Whether TLS is used."),
        Setting(
            name="ca_file",
            kind=Kind.PATH,
            default="",
            example="rabbitmq/ca.pem",
            description="With TLS: certificates to trust instead of the system's.",
        ),
        Setting(
            name="certificate_file",
            kind=Kind.PATH,
            default="",
            example="rabbitmq/client.pem",
            description="With TLS: this client's certificate, PEM.",
        ),
        Setting(
            name="key_file",
            kind=Kind.PATH,
            default="",
            example="rabbitmq/client-key.pem",
            description="With TLS: its private key, PEM.",
        ),
        Setting(
            name="key_password",
            kind=Kind.REFERENCE,
            secret=True,
            default="",
            example=PASSWORD_EXAMPLE,
            description=f"The password of the private key. {REFERENCE}",
        ),
        Setting(
            name="heartbeat_seconds",
            kind=Kind.INTEGER,
            default=20,
            minimum=1,
            maximum=600,
            description="A connection without traffic for twice this time is lost.",
        ),
        Setting(
            name="management",
            kind=Kind.TEXT,
            default="",
            example=_MANAGEMENT,
            description="The management plugin's address, used to read and create queues, exchanges and bindings. Empty: nothing is "
            "created, and the entities of a route have to exist.",
        ),
        Setting(
            name="queue_type",
            kind=Kind.CHOICE,
            choices=("quorum", "classic"),
            default="quorum",
            description="Type of queues that `apply` creates.",
        ),
        Setting(
            name="exchange_type",
            kind=Kind.CHOICE,
            choices=("topic", "fanout", "headers"),
            default="topic",
            description="Type of exchanges that `apply` creates.",
        ),
        Setting(
            name="dead_letter_exchange",
            kind=Kind.BOOLEAN,
            default=False,
            description="Whether the queues that tasks read have a dead-letter exchange: messages to set aside are rejected, "
            "and RabbitMQ moves "
            "them there, without a reason. RabbitMQ would drop them if a queue had none.",
        ),
    ),
)
