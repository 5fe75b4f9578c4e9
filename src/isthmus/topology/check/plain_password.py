"""Passwords that a federation file shows on the way to another machine.

What it is: what lint warns of, and doctor: a namespace whose password, or token, goes there without TLS. What it is not: a refusal; the kinds
that refuse it say so themselves (`isthmus.connectors.servicebus.plain_host`).
"""

from __future__ import annotations

from isthmus.topology.file.document import Document
from isthmus.topology.kind import KINDS
from isthmus.topology.kind.base import is_loopback
from isthmus.topology.model import Federation, NamespaceRef

__all__ = ["check_passwords", "shown_to"]


def shown_to(namespace: NamespaceRef) -> list[tuple[str, str]]:
    """The other machines that a password goes to without TLS, each with what to write instead."""
    places = KINDS[namespace.kind].plain_places(dict(namespace.settings))
    return list(dict.fromkeys((host, instead) for host, instead in places if not is_loopback(host)))


def check_passwords(federation: Federation, document: Document) -> None:
    """Warn of what is shown."""
    for namespace in federation.namespaces.values():
        found = shown_to(namespace)
        if found:
            hosts, instead = (", ".join(dict.fromkeys(each)) for each in zip(*found, strict=True))
            document.warn(
                namespace.place,
                f"namespace {namespace.alias}: its password goes to {hosts} without TLS, and whoever sees the packets can read it",
                f"write {instead}; in a network that is trusted nothing has to be done",
            )
