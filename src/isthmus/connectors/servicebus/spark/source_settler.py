"""Settles rows of a write at their source.

What it is: a connection to the source over which unsent rows get their disposition, by lock token; it blocks. What it is
not: the settling of sent rows, which follows Spark's commit (`batch.settlement`).

Invariants:
    I1. A row whose lock is lost and whose message still exists is an error: its disposition would be lost with it.
    I2. A repeated task skips the rows that the first one has settled.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.servicebus.connect import endpoint_of, open_client
from isthmus.connectors.servicebus.head import peeked_message
from isthmus.connectors.servicebus.option import SinkOptions, SourceOptions
from isthmus.connectors.servicebus.spark.disposition import outcome_of, start_settling
from isthmus.errors import ConnectionLostError, InvalidArgumentError, LockLostError
from isthmus.transport import Management

__all__ = ["SourceSettler"]

# The state of a message that waits, or is locked.
ACTIVE = 0


class SourceSettler:
    """Settles at the source that the options of a write name.

    Args:
        options: the write's options.
    """

    def __init__(self, options: SinkOptions) -> None:
        source = SourceOptions(
            connection=options.source_connection,
            entity=options.source_entity,
            ca_file=options.source_ca_file,
            transport_type=options.source_transport_type,
        )
        self._source = source
        self._path = source.entity.strip("/")
        self._tokens: dict[int, bytes] = {}
        self._connect()

    def _connect(self) -> None:
        self._client = open_client(endpoint_of(self._source), self._path, "isthmus-dispose")
        self._management = Management(self._client, self._path)

    def know(self, sequences: Sequence[int], tokens: Sequence[bytes]) -> None:
        """Remembers the lock tokens of rows."""
        self._tokens.update(zip(sequences, tokens, strict=True))

    def settle(self, sequence: int, disposition: Disposition) -> None:
        """Settles a row whose token is known.

        Raises:
            InvalidArgumentError: the lock token is missing.
            LockLostError: its lock is lost, and the message is not settled.
            IsthmusError: the source is unreachable, or refuses.
        """
        outcome = outcome_of(disposition.kind, disposition.reason, disposition.description)
        token = self._tokens.get(sequence)
        if not token:
            raise InvalidArgumentError(
                f"message {sequence} has a disposition and no lock token, by which it would be settled at its source; keep the column 'lock_token'"
            )
        tokens = [token]
        try:
            try:
                self._management.finish(start_settling(self._management, tokens, outcome))
            except ConnectionLostError:  # the connection was idle during the batch
                self._client.abandon()
                self._connect()
                self._management.finish(start_settling(self._management, tokens, outcome))
        except LockLostError:
            self._check_settled(sequence)

    def _check_settled(self, sequence: int) -> None:
        """A repeated task finds rows settled by the first one; a message that still exists has lost its lock."""
        page = self._management.peek(sequence, 1)
        found = peeked_message(page[0]) if page else None
        if found is not None and found.sequence == sequence and found.state == ACTIVE:
            raise LockLostError(
                f"'{self._path}': the lock of message {sequence} is lost, and with it its disposition; stop the query, remove the "
                "folder of its batches (option spool), and start it: the messages of the batch are delivered again"
            )

    def close(self) -> None:
        """Ends the connection."""
        self._client.close(1.0)
