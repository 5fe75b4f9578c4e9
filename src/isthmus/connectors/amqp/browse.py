"""A queue of a broker, browsed.

What it is: the messages of a queue in their order, over a link of distribution mode `copy` (OASIS AMQP 1.0, 3.5.2), which takes no message.
They are numbered from 1 in the order of browsing, as a sequence number in their annotations: a broker reports none. What it is not: the
reading of a route (`source`).

Invariants:
    I1. A broker that does not grant the mode is refused: browsing never takes a message.
    I2. An empty page means that no message arrived for `QUIET_SECONDS` although there was credit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.amqp.performative import Source
from isthmus.amqp.types import Long, Symbol
from isthmus.connectors.amqp.option import BROKER, BrokerOptions, read_as
from isthmus.connectors.amqp.remote import can_browse, open_client
from isthmus.errors import IsthmusError, NotAllowedError
from isthmus.message import name as names
from isthmus.transport import Client, LinkTerms, Receiver

__all__ = ["QUIET_SECONDS", "QueueBrowse", "broker_options"]

QUIET_SECONDS = 1.0
_COPY = Symbol("copy")


def broker_options(options: Mapping[str, str]) -> BrokerOptions:
    """The options that reach a broker.

    Raises:
        ConfigError: one is invalid.
    """
    return read_as(BROKER, BrokerOptions, options)


class QueueBrowse:
    """Browses one queue.

    Args:
        options: the options that reach the broker.
        entity: the queue's address.

    Raises:
        IsthmusError: no answer, the queue does not exist, or it cannot be browsed.
    """

    def __init__(self, options: Mapping[str, str], entity: str) -> None:
        self._options = broker_options(options)
        self._entity = entity
        self._client: Client | None = None
        self._receiver = self._open()
        self._next = 1
        self._kept: list[bytes] = []  # received and not requested yet

    def __call__(self, from_position: int, count: int) -> Sequence[bytes]:
        """Messages from a position on, `count` at most; empty where there are none.

        Raises:
            IsthmusError: the connection is lost.
        """
        wanted = max(1, from_position)
        if wanted < self._next or self._receiver.error is not None:  # from the beginning: a browser cannot go back
            self.close()
            self._receiver, self._next, self._kept = self._open(), 1, []
        while self._next < wanted:
            page = self._page(wanted - self._next)
            if not page:
                return ()
        return self._page(count)

    def _page(self, count: int) -> list[bytes]:
        receiver, client = self._receiver, self._client
        assert client is not None
        until = time.monotonic() + QUIET_SECONDS
        while len(self._kept) < count and (left := until - time.monotonic()) > 0:
            if receiver.credit < count - len(self._kept):
                receiver.grant(count - len(self._kept))
            client.wait(left)
            if receiver.error is not None:
                raise receiver.error
            for run in receiver.take():
                receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1)
                self._kept += run.payloads
                until = time.monotonic() + QUIET_SECONDS
        page, self._kept = self._kept[:count], self._kept[count:]
        numbered = [_numbered(each, number) for number, each in enumerate(page, self._next)]
        self._next += len(page)
        return numbered

    def _open(self) -> Receiver:
        client = self._client = open_client(self._options, f"isthmus-browse-{os.getpid()}")
        try:
            if not can_browse(client):
                raise _refused(self._entity)
            source = Source(self._entity, distribution_mode=_COPY, capabilities=[Symbol("queue")])
            receiver = Receiver(client, self._entity, terms=LinkTerms(source=source)).wait_attached()
            granted = receiver.link.source
            if not isinstance(granted, Source) or granted.distribution_mode != _COPY:
                raise _refused(self._entity)
        except IsthmusError:
            client.abandon()
            raise
        return receiver

    def close(self) -> None:
        """Closes it."""
        if self._client is not None:
            self._client.close(1.0)


def _refused(entity: str) -> NotAllowedError:
    return NotAllowedError(
        f"'{entity}': the broker does not allow browsing a queue (distribution mode copy); use the broker's own tools"
    )


def _numbered(message: bytes, number: int) -> bytes:
    """The message with its number, without a number of an earlier broker."""
    with suppress(CodecError, IndexError):
        sections = section.locate(message)
        annotations = {
            key: value
            for key, value in section.decode_map(message, sections.message_annotations).items()
            if str(key) not in names.BROKER_ANNOTATIONS
        }
        annotations[Symbol(names.SEQUENCE_NUMBER)] = Long(number)
        start, end = sections.message_annotations
        if not end:
            start = end = max(sections.header[1], sections.delivery_annotations[1])
        made = section.encode_map_section(section.MESSAGE_ANNOTATIONS, annotations)
        return message[:start] + made + message[end:]
    return message
