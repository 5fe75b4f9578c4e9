"""The sending of a write's messages to their target.

What it is: the bridge's host with one route that a task passes messages to; the options of the write name its target. It
starts with the first rows, so that a task without rows connects to nothing. What it is not: the sending (`isthmus.bridge.host.sender.sender`),
or the rows (`sink`).

Invariants:
    I1. `finish` returns only after the target has acknowledged all messages.
    I2. A message that is not sent gets its disposition at its source, or is an error; only omitted messages need no source.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.host.sender.sender import SenderHost
from isthmus.bridge.lease.source_clock import bounded_ms
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.connectors.servicebus.connect import endpoint_of
from isthmus.connectors.servicebus.message.sequence import broker_times_of
from isthmus.connectors.servicebus.option import SinkOptions, SourceOptions
from isthmus.connectors.servicebus.spark.error import RowRefusedError
from isthmus.connectors.servicebus.spark.source_settler import SourceSettler
from isthmus.transport import Client

__all__ = ["Outward", "route_of"]

KIND = "servicebus"
# The only route of a write.
HANDLE = 1
ORIGIN_SECONDS = 10.0


def route_of(options: SinkOptions) -> RouteSpec:
    """The route of a write, whose source is Spark."""
    given = {each.name: getattr(options, each.name) for each in fields(options)}
    target_options = {
        each.name: str(given[each.name]).lower() if isinstance(given[each.name], bool) else str(given[each.name])
        for each in fields(options)
        if given[each.name] != each.default
    }
    return RouteSpec(
        name=f"servicebus write to {options.entity.strip('/')}",
        source=End(KIND, ""),
        target=End(KIND, "", target_options),
        in_flight=options.window,
        envelope_messages=options.batch_messages,
        block_refused=options.refused == "block",
        target_seconds=options.target_timeout_seconds,
    )


class Outward:
    """Sends the messages of one task.

    Args:
        options: the write's options.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._path = options.entity.strip("/")
        self._host: SenderHost | None = None
        self._settler: SourceSettler | None = None

    def send(
        self,
        positions: Sequence[int] | None,
        data: bytes,
        offsets: Sequence[int],
        disposed: Sequence[tuple[int, Disposition]] = (),
    ) -> None:
        """Passes messages on; blocks while many wait to be sent.

        Args:
            positions: their sequence numbers at the source; None where they have none.
            data: encoded messages, one after the other.
            offsets: the start of each, and the end of the last; empty where there is none.
            disposed: messages that are not sent: (sequence number, disposition).

        Raises:
            IsthmusError: the target failed, or a message could not be disposed of.
        """
        host = self._host or self._begin()
        clock = _clock_offset_ms(data[offsets[-2] : offsets[-1]]) if len(offsets) > 1 else None
        host.hand_over(HANDLE, positions, data, offsets, disposed, clock_offset_ms=clock)

    def know(self, positions: Sequence[int], tokens: Sequence[bytes]) -> None:
        """Sets the lock tokens by which messages are settled; before they are passed on."""
        if not self._options.source_connection:
            return
        if self._host is None:
            self._begin()
        if self._settler is not None:
            self._settler.know(positions, tokens)

    def finish(self) -> None:
        """Waits until everything is acknowledged.

        Raises:
            IsthmusError: the target failed, or a message could not be disposed of.
        """
        if self._host is not None:
            self._host.finish()

    def abort(self, error: BaseException) -> None:
        """The task failed: sends nothing more."""
        if self._host is not None:
            self._host.abort(error)

    def close(self) -> None:
        """Closes the connection to the source."""
        if self._settler is not None:
            self._settler.close()

    def _begin(self) -> SenderHost:
        options = self._options
        if options.source_connection:
            self._settler = SourceSettler(options)
        self._host = SenderHost(
            channel=None,
            static=(route_of(options),),
            origin_identity=_origin_identity(options),
            dispose=self._dispose,
        ).start()
        return self._host

    def _dispose(self, position: int | None, disposition: Disposition) -> None:
        if position and self._settler is not None:
            self._settler.settle(position, disposition)
        elif disposition.kind != "complete":
            raise RowRefusedError(self._path, *disposition)


def _clock_offset_ms(message: bytes) -> int | None:
    """The offset from monotonic time of the clock of a message's time to live; None where it is this machine's."""
    wall_ms = time.time_ns() // 1_000_000
    enqueued_ms, locked_until_ms = broker_times_of(message)
    bounded = bounded_ms(wall_ms, enqueued_ms, locked_until_ms)
    return None if bounded == wall_ms else bounded - time.monotonic_ns() // 1_000_000


def _origin_identity(options: SinkOptions) -> str:
    """The identity of the namespace from which the rows were read; empty where no option reaches it."""
    if not (options.origin and (options.origin_connection or options.origin_host)):
        return ""
    source = SourceOptions(
        connection=options.origin_connection,
        host=options.origin_host,
        identity=options.origin_identity,
        ca_file=options.origin_ca_file,
        transport_type=options.origin_transport_type,
    )
    client = Client(endpoint_of(source), name="isthmus-origin").open(options.target_timeout_seconds or ORIGIN_SECONDS)
    client.close(1.0)
    return client.namespace_id
