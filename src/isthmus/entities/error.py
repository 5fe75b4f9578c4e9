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
        return (
            "The SessionId was not set on a message, and it cannot be sent to the entity "
            f"'{self.attributes.get('path', '')}'. Entities that have session support enabled can only receive "
            "messages that have the SessionId set to a valid value."
        )
