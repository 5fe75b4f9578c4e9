"""The address of a namespace by DNS: the SRV records of a name.

What it is: the lookup, the choice among records, and a connection string with the host that was found. What it is not: a cache: each
new connection looks the name up, and the resolver caches answers for their lifetime; if DNS does not answer, the last answer is used.
Spec: RFC 2782.

Invariants:
    I1. Only records with the lowest priority are used; among them, the weight is the share.
    I2. A name that does not answer means that a region may be unavailable; a name without records is an error.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from isthmus.errors import IsthmusError
from isthmus.extra import require

__all__ = ["NoRecordsError", "Record", "Service", "address", "choose", "with_host"]

_log = logging.getLogger(__name__)

_LOOKUP_SECONDS = 5.0
_TLS_PORT = 5671


class NoRecordsError(IsthmusError):
    """A name has no SRV records, or its record denies the service."""

    code = "no-srv-records"


class Record(NamedTuple):
    """One SRV record."""

    priority: int
    weight: int
    port: int
    host: str


def choose(records: Sequence[Record], pick: Callable[[float], float] = lambda total: random.random() * total) -> Record:
    """The record to use.

    Args:
        records: at least one.
        pick: returns a number from 0 up to a total, exclusively.
    """
    lowest = min(record.priority for record in records)
    # Those of weight 0 come first, as the RFC requires: they are chosen rarely, not never.
    order = sorted((record for record in records if record.priority == lowest), key=lambda record: record.weight > 0)
    at = pick(sum(record.weight for record in order) + 1e-9)
    for record in order:
        at -= record.weight
        if at <= 0:
            return record
    return order[-1]


def with_host(connection: str, record: Record) -> str:
    """A connection string with a record's host and port; everything else stays."""
    parts = []
    for part in connection.split(";"):
        name, is_pair, value = part.partition("=")
        if is_pair and name.strip().lower() == "endpoint":
            scheme = value.partition("://")[0] if "://" in value else "sb"
            part = f"Endpoint={scheme}://{address(record)}/"  # noqa: PLW2901 - the part as it is wanted
        parts.append(part)
    return ";".join(parts)


def address(record: Record) -> str:
    """Host, and port where it is not that of AMQP over TLS."""
    return record.host if record.port == _TLS_PORT else f"{record.host}:{record.port}"


class Service:
    """A name with SRV records, e.g. ``_servicebus._tcp.orders.example.org``.

    Args:
        name: of the service.
        lookup: returns the records of a name; raises OSError if no server answers, NoRecordsError if there are none.
    """

    def __init__(self, name: str, lookup: Callable[[str], list[Record]] | None = None) -> None:
        self._name = name
        self._lookup = lookup or _lookup
        self._last: list[Record] = []

    def find(self) -> Record:
        """The record to use now.

        Raises:
            OSError: no server answers, and none has answered before.
            NoRecordsError: there are none.
            MissingExtraError: the DNS library is not installed.
        """
        try:
            self._last = self._lookup(self._name)
        except OSError as error:
            if not self._last:
                raise
            _log.warning("DNS does not answer, the last answer is used: name=%s error=%s", self._name, error)
        return choose(self._last)


def _lookup(name: str) -> list[Record]:
    require("dns", f"the endpoint srv:{name}")
    import dns.exception
    import dns.rdatatype
    import dns.resolver

    try:
        answer = dns.resolver.resolve(name, dns.rdatatype.SRV, lifetime=_LOOKUP_SECONDS)
    except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer) as error:
        raise NoRecordsError(f"{name} has no SRV records: {error}") from None
    except dns.exception.DNSException as error:
        raise OSError(f"{name}: {str(error) or type(error).__name__}") from error
    found = [
        Record(each.priority, each.weight, each.port, each.target.to_text(omit_final_dot=True))
        for each in answer
        if each.target.to_text() != "."
    ]
    if not found:
        raise NoRecordsError(f"{name} says that there is no such service.")
    return found
