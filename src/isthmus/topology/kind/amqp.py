"""The kind `amqp`: any broker with AMQP 1.0, e.g. ActiveMQ Artemis, RabbitMQ, Qpid, Solace.

What it is: the settings of a broker and the faults of their combination. What it is not: the connector's other options
(`isthmus.connectors.amqp.option`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from isthmus.topology.file.setting import Kind, Setting
from isthmus.topology.kind.base import PASSWORD_EXAMPLE, REFERENCE, NamespaceKind, SettingFault, Shape

__all__ = ["AMQP", "URL", "amqp_faults"]

# No user information: a password in an address ends up in logs.
URL = re.compile(
    r"(?P<scheme>amqps?|wss?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*)(?::(?P<port>\d{1,5}))?(?P<path>/[!-~]*)?"
)
_EXAMPLE = "amqps://broker.example.com:5671"


def amqp_faults(values: Mapping[str, Any], write: Callable[[str, str], str]) -> Iterator[SettingFault]:
    """The faults of a broker's combined settings.

    Args:
        values: values by setting name.
        write: formats a setting and its value for a hint.

    Yields:
        The faulty setting, the fault, and a hint.
    """
    found = URL.fullmatch(str(values["url"] or ""))
    if values["url"] and (found is None or int(found["port"] or 1) not in range(1, 65536)):
        what = "has user information" if "@" in str(values["url"]) else "is no address of a broker"
        yield (
            "url",
            f"url {what}",
            f"write {write('url', _EXAMPLE)}, and username and password as separate settings",
        )
        return
    if found is not None and found["scheme"].startswith("amqp") and (found["path"] or "/") != "/":
        yield (
            "url",
            "url has a path, which only WebSocket has",
            f"write {write('virtual_host', 'NAME')} for a virtual host",
        )
    is_secure = found is not None and found["scheme"] in ("amqps", "wss")
    mechanism = values["sasl"]
    if bool(values["username"]) != bool(values["password"]):
        missing = "password" if values["username"] else "username"
        example = PASSWORD_EXAMPLE if missing == "password" else "NAME"
        yield missing, "username and password go together", f"write {write(missing, example)}"
    elif mechanism == "plain" and not values["username"]:
        yield "sasl", "SASL PLAIN needs username and password", f"write {write('username', 'NAME')}"
    elif mechanism in ("anonymous", "external", "none") and values["username"]:
        yield "username", f"sasl {mechanism} uses no password", f"write {write('sasl', 'plain')}"
    if mechanism == "external" and not values["certificate_file"]:
        yield "sasl", "SASL EXTERNAL needs a client certificate", f"write {write('certificate_file', 'client.pem')}"
    files = next((name for name in ("ca_file", "certificate_file", "key_file") if values[name]), "")
    if files and not is_secure:
        yield files, "certificates need TLS", f"write {write('url', _EXAMPLE)}"
    if values["key_file"] and not values["certificate_file"]:
        yield "key_file", "key_file needs certificate_file", f"write {write('certificate_file', 'client.pem')}"


AMQP = NamespaceKind(
    name="amqp",
    title="an AMQP 1.0 broker",
    shape=Shape.QUEUE,
    browses=True,
    dead_letters=False,
    dead_letters_by="rejects",
    takes_dead_letters=True,
    address="url",
    faults=amqp_faults,
    settings=(
        Setting(
            name="url",
            kind=Kind.TEXT,
            required=True,
            example=_EXAMPLE,
            description="Address of the broker: `amqps://` (TLS, default port 5671), `amqp://` (5672), `wss://` or `ws://` "
            "(WebSocket, 443 or 80, with its path). Over `amqp://` and `ws://` no password is sent to another machine, "
            "unless `ISTHMUS_ALLOW_PLAIN_HOSTS` names it.",
        ),
        Setting(
            name="sasl",
            kind=Kind.CHOICE,
            choices=("auto", "plain", "anonymous", "external", "none"),
            default="auto",
            example="plain",
            description="How the client authenticates. `auto`: `plain` with a username, `external` with a certificate, else `anonymous`; "
            "`none`: without SASL.",
        ),
        Setting(
            name="username",
            kind=Kind.TEXT,
            default="",
            example="isthmus",
            description="With SASL PLAIN: the user name.",
        ),
        Setting(
            name="password",
            kind=Kind.REFERENCE,
            secret=True,
            default="",
            example=PASSWORD_EXAMPLE,
            description=f"With SASL PLAIN: the password. {REFERENCE}",
        ),
        Setting(
            name="virtual_host",
            kind=Kind.TEXT,
            default="",
            example="vhost:orders",
            description="The host name that the connection requests instead of the host's name; for RabbitMQ `vhost:NAME`.",
        ),
        Setting(
            name="ca_file",
            kind=Kind.PATH,
            default="",
            example="broker/ca.pem",
            description="With TLS: certificates to trust in addition to the system's.",
        ),
        Setting(
            name="certificate_file",
            kind=Kind.PATH,
            default="",
            example="broker/client.pem",
            description="With mutual TLS: this client's certificate, PEM.",
        ),
        Setting(
            name="key_file",
            kind=Kind.PATH,
            default="",
            example="broker/client-key.pem",
            description="With mutual TLS: its private key, PEM; without it the key is in `certificate_file`.",
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
            name="rejects",
            kind=Kind.BOOLEAN,
            default=False,
            description="Whether the broker keeps rejected messages in dead-letter addresses, so that a message can be set "
            "aside by rejecting it. A broker without them drops it; without this setting and `dead_letter_queue` in the task, "
            "refusals block.",
        ),
    ),
)
