"""The check of each message before an entity takes it: its head, its properties and its MessageId.

What it is: encoded messages parsed, the limits of their properties and ids, and ids made for messages without one.
What it is not: quota, status and sessions, which the entity checks (`intake`), or duplicates (`duplicate`).
Spec: docs/explanation/protocol.md, Sending, Message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from isthmus.amqp import codec, section
from isthmus.entities.catalog.description import INFINITE_MS
from isthmus.entities.catalog.limit import Limits
from isthmus.entities.error import InvalidMessageError
from isthmus.entities.record.amend import with_message_id
from isthmus.entities.record.copy import Copy, KeyReader, is_copy
from isthmus.entities.record.envelope import Packed
from isthmus.entities.record.parse import HeadCache, split_many, split_mixed, split_packed
from isthmus.entities.record.record import Parts
from isthmus.entities.storage.blob import Payload

__all__ = ["Examination"]

# Messages up to this size always arrive as bytes.
_SMALL_BYTES = 32 << 10
# Bytes of a message id that is made here.
_ID_BYTES = 16


class Examination:
    """The examination of messages for one entity.

    Args:
        limits: of the namespace.
        random_bytes: source of message ids.
    """

    __slots__ = ("_heads", "_keys", "_limits", "_random_bytes")

    def __init__(self, limits: Limits, random_bytes: Callable[[int], bytes]) -> None:
        self._limits = limits
        self._random_bytes = random_bytes
        self._heads = HeadCache(0)
        self._keys = KeyReader()

    def set_default_ttl(self, default_ttl_ms: int) -> None:
        """Cap the time to live of messages at the entity's default."""
        self._heads = HeadCache(0 if default_ttl_ms >= INFINITE_MS else default_ttl_ms)

    def capped(self, messages: Sequence[Parts]) -> Sequence[Parts]:
        """Messages from elsewhere with the entity's default time to live applied."""
        capped = self._heads.capped
        return [parts._replace(head=capped(parts.head)) for parts in messages]

    def split(self, payloads: Sequence[Payload], largest_bytes: int) -> list[Parts]:
        """Parsed messages, each with a MessageId.

        Args:
            payloads: as received, at least one.
            largest_bytes: size of the largest.

        Raises:
            InvalidMessageError: one cannot be read, or its properties or MessageId exceed the limits.
        """
        packed = payloads if isinstance(payloads, Packed) else None
        if largest_bytes > _SMALL_BYTES:
            accepted = split_mixed(payloads, self._heads)
        elif packed is not None:
            accepted = split_packed(packed.data, packed.bounds, self._heads, self._keys if packed.are_copies else None)
        else:
            accepted = split_many(payloads, self._heads)  # type: ignore[arg-type]  # none is large
        if largest_bytes > self._limits.max_property_bytes:
            for parts in accepted:
                self._check_properties(parts)
        self._identify(accepted)
        if largest_bytes > _SMALL_BYTES or (packed is None and Copy in set(map(type, payloads))):
            accepted = self._keyed(accepted, list(map(is_copy, payloads)))
        return accepted

    def _identify(self, accepted: list[Parts]) -> None:
        """Give a MessageId to messages without one."""
        limit = self._limits.max_message_id_characters
        without: list[int] = []
        for index, parts in enumerate(accepted):
            if len(parts.message_id) > limit:
                length = len(str(codec.decode(parts.message_id)[0]))
                if length > limit:
                    raise InvalidMessageError(f"the MessageId has {length} characters; the limit is {limit}")
            elif not parts.message_id:
                without.append(index)
        if without:
            made = self._random_bytes(_ID_BYTES * len(without)).hex()
            for number, index in enumerate(without):
                start = 2 * _ID_BYTES * number
                accepted[index] = with_message_id(accepted[index], made[start : start + 2 * _ID_BYTES])

    def _keyed(self, messages: list[Parts], copied: list[bool]) -> list[Parts]:
        """The messages; those that are routes' copies have their keys."""
        if all(copied):
            return self._keys.with_keys(messages)
        keyed = iter(
            self._keys.with_keys([parts for parts, is_keyed in zip(messages, copied, strict=True) if is_keyed])
        )
        return [next(keyed) if is_keyed else parts for parts, is_keyed in zip(messages, copied, strict=True)]

    def _check_properties(self, parts: Parts) -> None:
        """Refuse application properties over the limits; only a message larger than one property may be is checked."""
        limits = self._limits
        start, end = section.locate(parts.rest).application_properties
        if end - start > limits.max_properties_bytes:
            raise InvalidMessageError(
                f"the application properties have {end - start} bytes; the limit is {limits.max_properties_bytes}"
            )
        if end - start > limits.max_property_bytes:
            for key, value, after in section.map_items(parts.rest, (start, end)):
                if after - key > limits.max_property_bytes:
                    name = str(codec.decode(parts.rest, key)[0]) if value - key < 300 else "..."
                    raise InvalidMessageError(
                        f"the application property '{name}' has {after - key} bytes; the limit is "
                        f"{limits.max_property_bytes}"
                    )
