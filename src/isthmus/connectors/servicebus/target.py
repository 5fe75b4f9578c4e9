"""A target entity as the delivery machine sees it.

What it is: the connection and the link to one queue or topic, what was sent as the machine's outcomes, and Service Bus's
errors as refusals. Calls that may block say so. What it is not: what is sent when (`isthmus.bridge.delivery`).

Invariants:
    I1. Ordinals of outcomes are those of the present connection, from 0, in the order of sending.
    I2. Only what is about the message whatever the time is refused as MESSAGE; what is not known for sure is UNCLEAR.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from isthmus.amqp import BATCH_FORMAT
from isthmus.bridge.delivery_event import Lost, Outcome, Send
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.servicebus.connect import open_client
from isthmus.connectors.servicebus.outlet_error import TargetChangedError
from isthmus.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    InvalidArgumentError,
    IsthmusError,
    MessageTooLargeError,
    OutcomeUnknownError,
    ProtocolError,
    UnauthorizedError,
)
from isthmus.transport import Client, Endpoint, Sender
from isthmus.transport.error import TransportError
from isthmus.transport.sender import envelope

__all__ = ["Target", "may_pass", "refusal_of"]

CONNECT_SECONDS = 10.0
_OF_THE_MESSAGE = (MessageTooLargeError, InvalidArgumentError, ProtocolError)


def may_pass(error: IsthmusError) -> bool:
    """Whether the target may take the same message later, though nobody changes it."""
    return error.retryable or isinstance(error, EntityDisabledError)


def refusal_of(error: IsthmusError) -> Refusal:
    """What a target's answer to a message means."""
    condition = str(error.attributes.get("condition") or "")
    if isinstance(error, TransportError):
        return Refusal(RefusalKind.UNCLEAR, condition, str(error.attributes.get("description") or "refused"))
    reason = "MessageTooLarge" if isinstance(error, MessageTooLargeError) else "RefusedByTarget"
    if isinstance(error, EntityNotFoundError | UnauthorizedError):
        kind = RefusalKind.FATAL
    elif isinstance(error, OutcomeUnknownError):
        kind = RefusalKind.UNKNOWN
    elif may_pass(error):
        kind = RefusalKind.BLOCKED
    elif isinstance(error, _OF_THE_MESSAGE):
        kind = RefusalKind.MESSAGE
    else:
        kind = RefusalKind.UNCLEAR
    return Refusal(kind, condition, str(error), reason)


class Target:
    """The connection to one entity.

    Args:
        endpoint: the namespace.
        path: queue or topic.
        capabilities: what the link asks for.

    Attributes:
        fatal: the error of the last refusal of kind FATAL.
        offered: those of `capabilities` that the target offers; known from the first connection on.
        namespace_id: the identity of the target's namespace; known from the first connection on.
    """

    def __init__(self, endpoint: Endpoint, path: str, capabilities: tuple[str, ...] = ()) -> None:
        self.endpoint = endpoint
        self.path = path
        self.capabilities = capabilities
        self.offered: frozenset[str] = frozenset()
        self.namespace_id = ""
        self._is_known = False
        self.fatal: IsthmusError | None = None
        self._client: Client | None = None
        self._sender: Sender | None = None

    # ---- connecting

    def connected(self) -> tuple[Client, Sender]:
        """A new connection, for `adopt`; blocks.

        Raises:
            TargetChangedError: another namespace answers than before.
            IsthmusError: the target cannot be reached, or refuses.
        """
        client = open_client(self.endpoint, self.path, f"isthmus-outlet-{os.getpid()}", CONNECT_SECONDS)
        try:
            sender = Sender(client, self.path, self.capabilities).wait_ready(CONNECT_SECONDS)
            self._check_same(client.namespace_id, frozenset(filter(sender.offers, self.capabilities)))
            return client, sender
        except BaseException:
            client.abandon()
            raise

    def _check_same(self, namespace_id: str, offered: frozenset[str]) -> None:
        """Copies are made for the namespace that answered first: another one would take them for something else."""
        if not self._is_known:
            self._is_known, self.namespace_id, self.offered = True, namespace_id, offered
        elif (self.namespace_id, self.offered) != (namespace_id, offered):
            raise TargetChangedError(f"'{self.path}': another namespace, or another version of it, answers now")

    def adopt(self, client: Client, sender: Sender) -> None:
        """From now on this connection is used."""
        self._client, self._sender = client, sender

    def abandon(self) -> None:
        """Closes without a word."""
        if self._client is not None:
            self._client.abandon()
        self._client = self._sender = None

    def close(self) -> None:
        """Closes; everything is acknowledged, or is sent again: there is nothing to wait for."""
        if self._client is not None:
            self._client.close(0.0)

    # ---- sending

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, sound or not."""
        return self._sender is not None

    @property
    def client(self) -> Client | None:
        """The connection, to poll; None where there is none that may be polled."""
        return self._client if self._client is not None and self._client.error is None else None

    @property
    def credit(self) -> int:
        """Deliveries that may be sent now."""
        return self._sender.sendable if self._sender is not None else 0

    @property
    def message_bytes(self) -> int:
        """The largest message that the target takes; 0 where it told no limit."""
        return self._sender.max_message_bytes if self._sender is not None else 0

    def send(self, send: Send) -> None:
        """Queues deliveries; on a connection that is lost nothing happens, and `answers` tells of it."""
        sender = self._sender
        if sender is None or sender.error is not None:
            return
        if send.is_envelope:
            sender.send((envelope(send.payloads),), message_format=BATCH_FORMAT)
        else:
            sender.send(send.payloads)

    def service(self) -> None:
        """Reads what is there and writes what can be written."""
        if self._client is not None:
            self._client.service()

    def flush(self) -> bool:
        """Writes what can be written; whether something is left."""
        if self._client is None:
            return False
        self._client.flush()
        return self._client.backlog_bytes > 0

    def answers(self) -> Iterator[Outcome | Lost]:
        """What the target said since this was asked last; after `Lost` there is no connection."""
        sender, client = self._sender, self._client
        if sender is None or client is None:
            return
        outcomes = sender.outcomes
        while outcomes:
            first, last, error = outcomes.popleft()
            if error is not None:
                yield Outcome(first, last, self._refusal(error))
                continue
            while outcomes and outcomes[0].first == last + 1 and outcomes[0].error is None:
                last = outcomes.popleft().last
            yield Outcome(first, last)
        lost = sender.error or client.error
        if lost is not None:
            self.abandon()
            yield self.lost(lost)

    def lost(self, error: IsthmusError) -> Lost:
        """What a connection that broke, or could not be made, is to the machine."""
        if may_pass(error):
            return Lost(Refusal(RefusalKind.UNKNOWN, "", str(error)))
        self.fatal = error
        return Lost(Refusal(RefusalKind.FATAL, "", str(error)))

    def _refusal(self, error: IsthmusError) -> Refusal:
        refusal = refusal_of(error)
        if refusal.kind is RefusalKind.FATAL:
            self.fatal = error
        return refusal
