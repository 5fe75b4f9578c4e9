"""One `$management` node: finds the operation, checks the right, answers errors.

What it is not: the operations themselves (`message`, `session`, `rule`).
Spec: docs/explanation/protocol.md, Management.

Invariants:
    I1. Every request gets exactly one reply with `statusCode` and `statusDescription`.
    I2. No operation runs without its right: Listen to read and settle and to change rules, Send to schedule. In a
        transaction the right is checked again at the discharge.
    I3. The reply to a change is sent only after the change is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from isthmus.broker.link.condition import refusal
from isthmus.broker.link.request import Reply, Request, Respond, Style
from isthmus.broker.management import message, rule, session
from isthmus.broker.security.grant import Right
from isthmus.entities import Engine
from isthmus.errors import IsthmusError, NotAllowedError

__all__ = ["MANAGEMENT_STYLE", "MANAGEMENT_SUFFIX", "Management"]

MANAGEMENT_STYLE = Style("statusCode", "statusDescription", "errorCondition")
MANAGEMENT_SUFFIX = "/$management"

_PREFIX = "com.microsoft:"


class _Operation(NamedTuple):
    right: Right
    run: Callable[[Engine, str, Request, Respond], None]
    changes_entity: bool = False
    joins: bool = False
    """Whether it may be requested within a transaction; a renewal then still takes effect at once."""


_OPERATIONS = {
    "peek-message": _Operation(Right.LISTEN, message.peek),
    "receive-by-sequence-number": _Operation(Right.LISTEN, message.receive_deferred),
    "renew-lock": _Operation(Right.LISTEN, message.renew_lock, joins=True),
    "update-disposition": _Operation(Right.LISTEN, message.update_disposition, joins=True),
    "batch-delete-messages": _Operation(Right.LISTEN, message.delete_batch),
    "schedule-message": _Operation(Right.SEND, message.schedule, joins=True),
    "cancel-scheduled-message": _Operation(Right.SEND, message.cancel_scheduled, joins=True),
    # As at the service, Listen is enough to change rules here, while the administration API requires Manage.
    "add-rule": _Operation(Right.LISTEN, rule.add, changes_entity=True),
    "remove-rule": _Operation(Right.LISTEN, rule.remove, changes_entity=True),
    "enumerate-rules": _Operation(Right.LISTEN, rule.enumerate_rules),
    "get-message-sessions": _Operation(Right.LISTEN, session.list_sessions),
    "renew-session-lock": _Operation(Right.LISTEN, session.renew_lock, joins=True),
    "get-session-state": _Operation(Right.LISTEN, session.get_state),
    "set-session-state": _Operation(Right.LISTEN, session.set_state),
}


class Management:
    """The node of one entity, for one connection.

    Args:
        engine: has the entity.
        entity: its path as the client wrote it.
        require: raises UnauthorizedError if the connection lacks a right on the node.
        when_durable: calls the first function once everything staged is durable, the second if that failed.
        holder: the connection, which may have sessions.

    Raises:
        EntityNotFoundError: there is no such entity.
    """

    def __init__(
        self,
        engine: Engine,
        entity: str,
        require: Callable[[Right], None],
        when_durable: Callable[[Callable[[], None], Callable[[Exception], None]], None],
        holder: object = None,
    ) -> None:
        engine.canonical_name(entity)
        self._engine = engine
        self._entity = entity
        self._require = require
        self._when_durable = when_durable
        self._holder = holder

    def answer(self, request: Request, respond: Respond) -> None:
        """Carry out a request; `respond` is called once, now or when the change is durable."""
        operation = _OPERATIONS.get(request.operation.removeprefix(_PREFIX))
        if operation is None:
            text = f"The operation '{request.operation[:64]}' is not known here."
            respond(Reply(400, text, None, "amqp:not-implemented"))
            return
        request.holder = self._holder
        try:
            self._require(operation.right)
            if request.transaction is not None and not operation.joins:
                raise NotAllowedError(
                    f"'{request.operation}' cannot take part in a transaction; use the entity's links."
                )
            if request.transaction is not None:
                right = operation.right
                request.transaction.add_condition((self._entity, right), lambda: self._require(right))
            if operation.changes_entity:
                operation.run(self._engine, self._entity, request, lambda reply: self._defer(reply, respond))
            else:
                operation.run(self._engine, self._entity, request, respond)
        except IsthmusError as error:
            respond(_failure(error))

    def _defer(self, reply: Reply, respond: Respond) -> None:
        self._when_durable(lambda: respond(reply), lambda error: respond(_failure(error)))


def _failure(error: Exception) -> Reply:
    status, condition, text = refusal(error)
    return Reply(status, text, None, condition)
