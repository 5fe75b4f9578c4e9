"""Errors that only the entities raise; the shared ones are in `isthmus.errors`."""

from __future__ import annotations

from isthmus.errors import InvalidArgumentError, NotAllowedError

__all__ = ["InvalidMessageError", "SessionRequiredError"]


class InvalidMessageError(InvalidArgumentError):
    """A payload is no AMQP message, or a property in it has a type or length that the entity refuses."""

    code = "invalid-message"


class SessionRequiredError(NotAllowedError):
    """The entity requires sessions, and the message or the receiver names none."""

    code = "session-required"

    def __init__(self, path: str = "") -> None:
        super().__init__("", path=path)

    def text(self) -> str:
        return f"The messaging entity '{self.attributes.get('path', '')}' requires a SessionId; none was given."
