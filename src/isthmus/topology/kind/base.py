"""The declaration of a kind of namespace in the federation file.

What it is: the declaration that reader, lint, schema, reference page and the kind's connector share. What it is not: a connector, which
`isthmus.bridge.registry` finds by kind, nor the system's part on the driver, in `isthmus.connectors.system`.

Invariants:
    I1. A setting of a kind that is not Service Bus is an option of its connector under the name that `option` returns.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from isthmus.topology.file.setting import Setting, Spec

__all__ = [
    "ADDRESS",
    "PASSWORD_EXAMPLE",
    "REFERENCE",
    "NamespaceKind",
    "SettingFault",
    "Shape",
    "address_faults",
    "is_loopback",
]

REFERENCE = "Reference: `env:NAME`, `file:/path#key` or `keyvault:vault/name`."
PASSWORD_EXAMPLE = "env:NAME"

# Neither a user nor a query, which may be a token or a SAS: an address appears in plans and logs.
ADDRESS = re.compile(r"https?://[^/?#@\s]+(/[^?#\s]*)?")

SettingFault = tuple[str, str, str]
"""The faulty setting, the fault, and a hint."""


class Shape(Enum):
    """The nature of a kind's entities, for patterns, planning and verification."""

    SERVICE_BUS = "service-bus"
    """Queues, topics, subscriptions with rules, locks and dead-letter queues; may contain claims."""
    LOG = "log"
    """Streams whose records stay after they are settled, with partitions and consumer groups."""
    QUEUE = "queue"
    """Queues, or addresses, without rules and claims: a message leaves when it is settled. Entities that are only written to have this shape, too."""


def address_faults(
    values: Mapping[str, Any], name: str, example: str, secret: str, write: Callable[[str, str], str]
) -> Iterator[SettingFault]:
    """The faults of a setting that is an HTTP address.

    Args:
        values: values by setting name.
        name: name of the setting.
        example: an example of an address.
        secret: the setting for a secret.
        write: formats a setting and its value for a hint.
    """
    if values[name] and ADDRESS.fullmatch(str(values[name])) is None:
        yield (
            name,
            f"{name} is no address, or has a user, a query or a fragment, which would not be sent or may be a secret",
            f"write {write(name, example)}; write a secret into {secret}",
        )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name or address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _no_places(values: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return ()


def _no_faults(values: Mapping[str, Any], write: Callable[[str, str], str]) -> Iterable[SettingFault]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceKind:
    """A kind of namespace.

    Attributes:
        name: as written in the file.
        title: the usual name of the system.
        settings: the settings of a namespace of this kind besides `kind`; empty for Service Bus, whose settings the reader declares.
        option_names: connector options with another name than the setting.
        shape: the nature of its entities.
        reads: whether its entities can be sources.
        writes: whether its entities can be targets.
        dead_letters: of a queue: whether a message can be set aside at the source without a configured queue.
        dead_letters_by: otherwise the setting which declares that the system keeps rejected messages; empty: there is none.
        takes_dead_letters: of a queue: whether its source accepts a queue for messages that are set aside (option `dead_letters`).
        browses: of a queue: whether its messages can be read without consuming them; verification needs this at a target.
        audits_by: of a queue: the setting with which a topic can record its messages for verification (`PlainState.audit`); empty: no topic can.
        fans_out: whether each of several routes can read all messages of an entity, also those that other routes write to it.
        address: the settings that distinguish two systems, separated by spaces.
        granted_by: the permissions that grant the rights `listen`, `send` and `manage`, for people.
        faults: the faults of combined settings; gets the values by setting name, and a function that formats a setting and its value for a
            hint.
        plain_places: the hosts to which a password or token goes without TLS, each with a correction; gets the values of the file, as text.
            A kind that refuses such settings returns none.
    """

    name: str
    title: str
    settings: tuple[Setting, ...] = ()
    option_names: Mapping[str, str] = field(default_factory=dict)
    shape: Shape = Shape.SERVICE_BUS
    reads: bool = True
    writes: bool = True
    dead_letters: bool = True
    dead_letters_by: str = ""
    takes_dead_letters: bool = False
    browses: bool = False
    audits_by: str = ""
    fans_out: bool = True
    address: str = ""
    granted_by: Mapping[str, str] = field(default_factory=dict)
    faults: Callable[[Mapping[str, Any], Callable[[str, str], str]], Iterable[SettingFault]] = _no_faults
    plain_places: Callable[[Mapping[str, str]], Iterable[tuple[str, str]]] = _no_places

    @property
    def is_log(self) -> bool:
        """Whether messages stay after they are settled. A log has no dead-letter queue, no subscriptions with rules and no locks, and
        keeps order within a partition only.
        """
        return self.shape is Shape.LOG

    @property
    def is_plain(self) -> bool:
        """Whether its entities are queues without rules and claims."""
        return self.shape is Shape.QUEUE

    def spec(self, kind: Setting) -> Spec:
        """The settings of a namespace of this kind; `kind` is the setting that selects it."""
        return Spec(f"namespace of kind {self.name}", f"How to reach {self.title}.", (*self.settings, kind))

    def option(self, setting: str) -> str:
        """The connector's option for a setting."""
        return self.option_names.get(setting, setting)
