"""Errors that only the entities raise; the shared ones are in `isthmus.errors`."""

from __future__ import annotations

from isthmus.errors import InvalidArgumentError, IsthmusError, NotAllowedError

__all__ = ["InvalidMessageError", "SessionRequiredError", "TooManyHopsError"]


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


class TooManyHopsError(IsthmusError):
    """A message was forwarded as often as it may be, and would have to go on."""

    code = "too-many-hops"

    def __init__(self, path: str = "") -> None:
        super().__init__("", path=path)

    def text(self) -> str:
        return (
            f"Maximum transfer hop count is exceeded: the message passed 4 hops and would go on to "
            f"'{self.attributes.get('path', '')}'; shorten the chain of entities that forward."
        )
