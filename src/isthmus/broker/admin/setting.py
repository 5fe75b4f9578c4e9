"""Settings as elements: the values of descriptions to XML text and back.

What it is: one codec per type of setting, and the table row that ties an element's name to a description's field.
What it is not: the tables themselves (`description`).
Spec: W3C XML Schema lexical forms; docs/explanation/protocol.md, Administration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from isthmus.broker.config.duration import format_duration, parse_duration
from isthmus.entities.catalog.description import INFINITE_MS, EntityStatus
from isthmus.errors import InvalidArgumentError

__all__ = ["Codec", "Setting", "boolean", "duration", "forward", "number", "status", "text"]

# An entity's path, percent-encoded, after two schemes and hosts.
_FORWARD_LIMIT_CHARACTERS = 2048


@dataclass(frozen=True, slots=True)
class Codec:
    """How one type of value is read and written.

    Attributes:
        read: from an element's text; raises ValueError or InvalidArgumentError.
        write: to an element's text, given the value and the host that clients know the namespace by.
    """

    read: Callable[[str], Any]
    write: Callable[[Any, str], str]


@dataclass(frozen=True, slots=True)
class Setting:
    """An element that holds a field of a description.

    Attributes:
        name: the element's name.
        field: the description's attribute.
        codec: how its value is read and written.
        since: the first api-version that knows the element.
    """

    name: str
    field: str
    codec: Codec
    since: str = ""

    def parse(self, value: str) -> Any:
        """The field's value.

        Raises:
            InvalidArgumentError: the text is not a value of this type.
        """
        try:
            return self.codec.read(value)
        except (ValueError, InvalidArgumentError) as error:
            raise InvalidArgumentError(
                f"The value '{value[:64]}' of {self.name} is not valid. {error}".rstrip()
            ) from None


def _read_boolean(value: str) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    try:
        return known[value.strip().lower()]
    except KeyError:
        raise InvalidArgumentError("It must be true or false.") from None


def _read_number(value: str) -> int:
    digits = value.strip()
    if not digits.removeprefix("-").isdecimal() or not digits.isascii() or len(digits) > 19:
        raise InvalidArgumentError("It must be a whole number.")
    return int(digits)


def _read_status(value: str) -> EntityStatus:
    try:
        return EntityStatus(value.strip())
    except ValueError:
        raise InvalidArgumentError(f"It must be one of {', '.join(EntityStatus)}.") from None


def _read_forward(value: str) -> str | None:
    value = value.strip()
    if len(value) > _FORWARD_LIMIT_CHARACTERS:
        raise InvalidArgumentError(f"It has {len(value)} characters; {_FORWARD_LIMIT_CHARACTERS} are allowed.")
    # The Java client does not recognise "sb://" as a URL: it puts "https://HOST/" before the target that it read here.
    while "://" in value:
        path = urlsplit(value).path.strip("/")
        if path == value:  # what is before "://" is no scheme
            raise InvalidArgumentError("It must be the path of an entity, or a URL with that path.")
        value = path
    return unquote(value).strip("/") or None


boolean = Codec(_read_boolean, lambda value, host: "true" if value else "false")
number = Codec(_read_number, lambda value, host: str(value))
duration = Codec(
    lambda value: parse_duration(value, infinite_ms=INFINITE_MS), lambda value, host: format_duration(value)
)
status = Codec(_read_status, lambda value, host: str(value))
text = Codec(lambda value: value or None, lambda value, host: value)
# Clients send and expect forwarding targets as absolute URLs; the engine knows paths.
forward = Codec(_read_forward, lambda value, host: f"sb://{host}/{value}")
