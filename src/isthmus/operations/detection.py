"""The entities where duplicate detection may drop messages that a tool sends.

What it is: the settings of an entity and of all entities that it forwards to, read from the administration, and the
decision whether messages may be sent with their own MessageIds. A namespace accepts a duplicate and drops it, so
that no outcome shows it: the settings are the only source. What it is not: a list of the ids within a window, which no
namespace returns.
Spec: Microsoft Learn, "Duplicate detection" and "Autoforwarding"; the Atom documents of "Entity management".

Invariants:
    I1. Messages are sent with their own MessageIds only if no entity on their route detects duplicates, or if the
        operator requested it.
    I2. An entity that cannot be queried counts as one that may detect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from isthmus.broker.admin.document import DocumentError, Node, read
from isthmus.errors import EntityNotFoundError, InvalidArgumentError, IsthmusError

__all__ = ["Ask", "Detection", "check_detection", "find_detection"]

Ask = Callable[[str, str], bytes]
"""Takes a path with its query, and the path of the entity that the token is for; returns the body of the answer."""

_VERSION = "api-version=2021-05"
_PAGE = 50


class Detection(NamedTuple):
    """The known settings on the route of messages.

    Attributes:
        detecting: entities that detect duplicates, with their windows as the administration writes them.
        unknown: entities that could not be queried, and why.
        created_at: when the first entity was created, as the administration writes it; empty if it could not be queried.
    """

    detecting: dict[str, str]
    unknown: dict[str, str]
    created_at: str

    @property
    def may_drop(self) -> bool:
        """Whether a message may be dropped because of its MessageId."""
        return bool(self.detecting or self.unknown)


def find_detection(ask: Ask, path: str) -> Detection:
    """Query an entity, and those that it forwards messages or dead letters to.

    Args:
        ask: HTTP GET with a token.
        path: of a queue or topic.
    """
    found = Detection({}, {}, "")
    seen: set[str] = set()
    waiting = [path]
    while waiting:
        entity = waiting.pop().strip("/")
        if entity.lower() in seen:
            continue
        seen.add(entity.lower())
        try:
            description, created_at = _describe(ask, entity)
            if len(seen) == 1:
                found = found._replace(created_at=created_at)
            if _is_true(description, "RequiresDuplicateDetection"):
                found.detecting[entity] = description.find_text("DuplicateDetectionHistoryTimeWindow") or "unknown"
            waiting += _onward(description)
            if description.name == "TopicDescription":
                for subscription in _subscriptions(ask, entity):
                    waiting += _onward(subscription)
        except EntityNotFoundError:
            if len(seen) == 1:
                raise
        except (IsthmusError, DocumentError) as error:
            found.unknown[entity] = str(error)
    return found


def check_detection(ask: Ask, path: str, *, new_message_ids: bool, keep_message_ids: bool) -> Detection:
    """Refuse to send MessageIds to entities that may drop them.

    Args:
        ask: see `find_detection`.
        path: queue or topic to send to.
        new_message_ids: each message gets a MessageId of its own.
        keep_message_ids: the operator accepts dropped messages.

    Raises:
        InvalidArgumentError: an entity on the route detects duplicates, or cannot be queried; or both options are set.
        EntityNotFoundError: there is no such entity.
    """
    if new_message_ids and keep_message_ids:
        raise InvalidArgumentError("write one of --new-message-ids and --keep-message-ids")
    found = find_detection(ask, path)
    if new_message_ids or keep_message_ids or not found.may_drop:
        return found
    choice = (
        "give the messages new MessageIds (--new-message-ids), or send them unchanged and accept that those are dropped "
        "whose MessageId was received within the window (--keep-message-ids)"
    )
    if found.detecting:
        entity, window = next(iter(found.detecting.items()))
        forwarded = "" if entity.lower() == path.strip("/").lower() else f", to which '{path}' forwards,"
        raise InvalidArgumentError(
            f"'{entity}'{forwarded} detects duplicates: within its window ({window}) it accepts a message with a "
            f"MessageId that was received before and drops it; {choice}"
        )
    entity, reason = next(iter(found.unknown.items()))
    raise InvalidArgumentError(
        f"whether '{entity}' detects duplicates, and would drop messages, is unknown ({reason}); "
        f"use a key with Manage, {choice}"
    )


def _describe(ask: Ask, entity: str) -> tuple[Node, str]:
    answer = read(ask(f"/{quote(entity)}?{_VERSION}", entity))
    if answer.name == "feed":  # the service's answer if there is none
        raise EntityNotFoundError(entity)
    description = _description_in(answer)
    return description, description.find_text("CreatedAt") or answer.find_text("published") or ""


def _subscriptions(ask: Ask, topic: str) -> list[Node]:
    found: list[Node] = []
    while True:
        query = f"{_VERSION}&$skip={len(found)}&$top={_PAGE}"
        page = list(read(ask(f"/{quote(topic)}/Subscriptions?{query}", topic)).find_all("entry"))
        found += map(_description_in, page)
        if len(page) < _PAGE:
            return found


def _description_in(entry: Node) -> Node:
    content = entry.find("content")
    description = content.children[0] if content is not None and content.children else None
    if description is None or not description.name.endswith("Description"):
        raise DocumentError("the answer describes no entity")
    return description


def _onward(description: Node) -> list[str]:
    addresses = (description.find_text(name) for name in ("ForwardTo", "ForwardDeadLetteredMessagesTo"))
    return [urlsplit(each).path if "://" in each else each for each in addresses if each]


def _is_true(description: Node, name: str) -> bool:
    return (description.find_text(name) or "").strip().lower() == "true"
