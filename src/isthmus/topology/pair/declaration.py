"""The declaration of a pair of namespaces in the federation file.

What it is: the settings of `pairs:` and their reader. What it is not: the state of a pair, i.e. which member is active;
that changes with a fail-over and is in the state folder (`isthmus.pairing.state.state`).
Spec: docs/how-to/recover-from-a-disaster.md; the concept is that of Microsoft Learn, "Azure Service Bus
Geo-Disaster Recovery".

Invariants:
    I1. Both members are declared namespaces of kind servicebus, and not the same one.
    I2. A namespace is a member of at most one pair: two pairs would fence each other's members.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isthmus.topology.file.document import Document, Place, Values, suggest
from isthmus.topology.file.setting import Kind, Setting, SettingError, Spec
from isthmus.topology.kind import SERVICE_BUS

__all__ = ["PAIR_SPEC", "Pair", "address_of", "read_pairs"]

DEFAULT_INTERVAL_MS = 2000
_LAST_PORT = 65_535

_ALIAS = Setting(name="pair", kind=Kind.ALIAS, description="Name of a pair.", example="contoso")

PAIR_SPEC = Spec(
    "pair",
    "Two namespaces of kind `servicebus` whose metadata is kept synchronised by `isthmus pair`. Initially, `primary` is the "
    "active one. `isthmus run` does not use it.",
    (
        Setting(
            name="primary",
            kind=Kind.ALIAS,
            required=True,
            description="Namespace that is active initially.",
            example="ewr",
        ),
        Setting(
            name="secondary",
            kind=Kind.ALIAS,
            required=True,
            description="Namespace that takes over.",
            example="jfk",
        ),
        Setting(
            name="listen",
            kind=Kind.TEXT,
            description="Address of the alias, `host:port`: where `isthmus pair run` redirects applications to the active member. "
            "Without it there is no alias, and only the metadata is kept synchronised.",
            example="127.0.0.1:5670",
        ),
        Setting(
            name="interval",
            kind=Kind.DURATION,
            default=DEFAULT_INTERVAL_MS,
            minimum=500,
            maximum=3_600_000,
            description="How often `isthmus pair run` compares the members. A slow comparison lengthens the interval: "
            "at most a fifth of the time is spent on namespaces that do not report changes, such as Azure's.",
            example="2s",
        ),
        Setting(
            name="exclude",
            kind=Kind.TEXTS,
            description="Queues and topics that are ignored at both members; `*` matches any text. Names that begin with "
            "`isthmus.` are always ignored.",
            example="[local-*]",
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A declared pair.

    Attributes:
        name: its key in the file.
        primary: alias of the namespace that is active initially.
        secondary: alias of the other namespace.
        listen: `host:port` of the alias; empty for none.
        interval_ms: time between two comparisons.
        exclude: patterns of ignored names.
        place: its position in the file.
    """

    name: str
    primary: str
    secondary: str
    listen: str = ""
    interval_ms: int = DEFAULT_INTERVAL_MS
    exclude: tuple[str, ...] = ()
    place: Place = field(default=Place(), compare=False, repr=False)

    @property
    def members(self) -> tuple[str, str]:
        """Both aliases, the primary first."""
        return self.primary, self.secondary


def read_pairs(node: Any, kinds: Mapping[str, str], declared: set[str], document: Document) -> dict[str, Pair]:
    """The pairs of a file; faults go to the document.

    Args:
        node: the node of `pairs`, or None.
        kinds: kind of each namespace that could be read, by alias.
        declared: aliases that the file has, valid or not.
        document: collects the faults.
    """
    found: dict[str, Pair] = {}
    member_of: dict[str, str] = {}
    for name, (key, value) in document.pairs(node, "pairs").items() if node is not None else ():
        place = document.place(key)
        try:
            _ALIAS.parse(name)
        except SettingError as wrong:
            document.fault(place, wrong.message, wrong.hint)
            continue
        if name.lower() in {each.lower() for each in found}:
            document.fault(place, f"pair {name} differs from another one in case only", "write another name")
            continue
        values = document.settings(value, PAIR_SPEC, f"pair {name}")
        before = len(document.faults)
        _check(name, values, kinds, declared, member_of, document)
        if values.faulty or len(document.faults) > before or not (values["primary"] and values["secondary"]):
            continue
        found[name] = Pair(
            name=name,
            primary=values["primary"],
            secondary=values["secondary"],
            listen=values["listen"] or "",
            interval_ms=values["interval"],
            exclude=tuple(values["exclude"] or ()),
            place=place,
        )
    return found


def _check(
    name: str,
    values: Values,
    kinds: Mapping[str, str],
    declared: set[str],
    member_of: dict[str, str],
    document: Document,
) -> None:
    for role in ("primary", "secondary"):
        alias = values[role]
        if not values.written(role) or role in values.faulty:
            continue
        if alias not in declared:
            document.fault(values.at(role), f"no namespace has the alias {alias!r}", suggest(alias, sorted(declared)))
        elif kinds.get(alias, SERVICE_BUS.name) != SERVICE_BUS.name:
            document.fault(
                values.at(role),
                f"pair {name}: {alias} is of kind {kinds[alias]}; only namespaces of kind {SERVICE_BUS.name} are paired",
                "write another namespace",
            )
        elif member_of.setdefault(alias.lower(), name) != name:
            document.fault(
                values.at(role),
                f"{alias} is a member of pair {member_of[alias.lower()]} too",
                "a namespace is a member of one pair: write another namespace",
            )
    if values["primary"] and values["primary"] == values["secondary"]:
        document.fault(
            values.at("secondary"), f"pair {name}: primary and secondary are the same", "write two namespaces"
        )
    if values["listen"] and "listen" not in values.faulty:
        try:
            address_of(values["listen"])
        except ValueError:
            document.fault(
                values.at("listen"),
                f"pair {name}: {values['listen']!r} is not an address",
                "write host:port, e.g. 127.0.0.1:5670",
            )


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `host:port`; an IPv6 address is in brackets.

    Raises:
        ValueError: the text is no address.
    """
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in bare and bare == host) or not port.isdecimal() or int(port) > _LAST_PORT:
        raise ValueError(f"'{text}' is not host:port")
    return bare, int(port)
