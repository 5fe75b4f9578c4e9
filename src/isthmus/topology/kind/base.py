"""What a kind of namespace is to the federation file.

What it is: the declaration that reader, lint, schema, reference page and the kind's connector share. What it is not: a connector; that
is found by kind in `isthmus.bridge.registry`, and what the driver needs of the system in `isthmus.connectors.system`.

Invariants:
    I1. A setting of a kind that is not Service Bus is an option of its connector under the name that `option` gives.
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

# Neither a user nor a query, which a token or a SAS may be: an address ends up in plans and logs.
ADDRESS = re.compile(r"https?://[^/?#@\s]+(/[^?#\s]*)?")

SettingFault = tuple[str, str, str]
"""The setting at fault, what is wrong, and a hint."""


class Shape(Enum):
    """What the entities of a kind are, for patterns, planning and verification."""

    SERVICE_BUS = "service-bus"
    """Queues, topics, subscriptions with rules, locks and dead-letter queues; may hold claims."""
    LOG = "log"
    """Streams whose records stay after they are settled, with partitions and consumer groups."""
    QUEUE = "queue"
    """Queues, or addresses, without rules and claims: a message leaves when it is settled. What is only written to has this shape, too."""


def address_faults(
    values: Mapping[str, Any], name: str, example: str, place: str, write: Callable[[str, str], str]
) -> Iterator[SettingFault]:
    """What is wrong with a setting that is an address of HTTP.

    Args:
        values: by the names of the settings.
        name: of the setting.
        example: of an address.
        place: the setting that a secret goes into.
        write: how a setting and its value are written where they are given.
    """
    if values[name] and ADDRESS.fullmatch(str(values[name])) is None:
        yield (
            name,
            f"{name} is no address, or has a user, a query or a fragment, which would be sent nowhere or be a secret",
            f"write {write(name, example)}; a secret goes into {place}",
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
    """A kind.

    Attributes:
        name: as written in the file.
        title: as people call the system.
        settings: what a namespace of this kind takes beside `kind`; empty for Service Bus, which the reader knows.
        option_names: connector options that have another name than the setting.
        shape: what its entities are.
        reads: whether its entities can be sources.
        writes: whether its entities can be targets.
        dead_letters: of a queue: whether a message can be set aside at the source without being told where.
        dead_letters_by: else the setting which says that the system keeps what is rejected; empty: there is none.
        takes_dead_letters: of a queue: whether its source can be told a queue for what is set aside (option `dead_letters`).
        browses: of a queue: whether what is in it can be read without taking it; verification needs it at a target.
        audits_by: of a queue: the setting with which a topic can keep what passes it for verification (`PlainState.audit`); empty: none can.
        fans_out: whether each of several routes can read all that is written to an entity, also what other routes write to it.
        address: the settings that tell two systems apart, with spaces between them.
        granted_by: what grants the rights `listen`, `send` and `manage`, for people.
        faults: what is wrong with settings together; takes the values by the names of the settings, and how a setting and its value are
            written where they are given.
        plain_places: the hosts to which a password or token goes without TLS, each with what to write instead; takes the values that the file
            has, as text. Of a kind that refuses to show them there are none.
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
        """The settings of a namespace of this kind; `kind` is the setting that chooses it."""
        return Spec(f"namespace of kind {self.name}", f"How to reach {self.title}.", (*self.settings, kind))

    def option(self, setting: str) -> str:
        """The connector's option for a setting."""
        return self.option_names.get(setting, setting)
