"""The resource that a request's URL names.

What it is: the path's grammar, from the raw path to names. What it is not: a check that the resource exists.
Spec: docs/explanation/protocol.md, Administration. Entity names may hold slashes, percent-encoded (Python, JavaScript) or plain (.NET); the words
``subscriptions``, ``rules`` and ``consumergroups`` are segments of their own, in any case.

Invariants:
    I1. Authorisation and operation use the same `Address`: `path` is made of the parsed names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from urllib.parse import unquote

from isthmus.errors import InvalidArgumentError

__all__ = ["Address", "Resource"]

# No name has these characters, and each would make a path ambiguous.
_FORBIDDEN = re.compile(r"[?#%\\\x00-\x1f\x7f]")


class Resource(Enum):
    """The kinds of resources."""

    ROOT = auto()
    NAMESPACE = auto()
    QUEUES = auto()
    TOPICS = auto()
    ENTITY = auto()
    SUBSCRIPTIONS = auto()
    SUBSCRIPTION = auto()
    RULES = auto()
    RULE = auto()
    EVENT_HUBS = auto()
    HYBRID_CONNECTIONS = auto()
    CONSUMER_GROUPS = auto()
    CONSUMER_GROUP = auto()


@dataclass(frozen=True, slots=True)
class Address:
    """A resource and the names of its path, spelt as the client spelt them."""

    resource: Resource
    entity: str = ""
    subscription: str = ""
    rule: str = ""
    group: str = ""

    @classmethod
    def parse(cls, raw_path: str) -> Address:
        """Read a URL's path, still percent-encoded.

        Raises:
            InvalidArgumentError: it names nothing.
        """
        raw = [segment for segment in raw_path.split("/") if segment]
        segments = [unquote(segment).strip("/") for segment in raw]
        if not raw:
            return cls(Resource.ROOT)
        if not all(segments) or _FORBIDDEN.search("".join(segments)):
            raise InvalidArgumentError("The path has a name with characters that no entity's name has.")
        first = segments[0].lower()
        if first == "$namespaceinfo" and len(raw) == 1:
            return cls(Resource.NAMESPACE)
        if first == "$resources":
            kinds = {
                "queues": Resource.QUEUES,
                "topics": Resource.TOPICS,
                "eventhubs": Resource.EVENT_HUBS,
                "hybridconnections": Resource.HYBRID_CONNECTIONS,
            }
            kind = kinds.get("/".join(segments[1:]).lower())
            if kind is None:
                raise InvalidArgumentError(
                    "The resource type is not known; there are queues, topics, eventhubs and hybridconnections."
                )
            return cls(kind)
        # Names of event hubs have no slash: the word is second, or it is part of an entity's name.
        if len(raw) in (2, 3) and raw[1].lower() == "consumergroups":
            if len(raw) == 2:
                return cls(Resource.CONSUMER_GROUPS, segments[0])
            return cls(Resource.CONSUMER_GROUP, segments[0], group=segments[2])
        # Raw segments are compared, so that an encoded slash is never a separator.
        at = next((i for i, segment in enumerate(raw) if i and segment.lower() == "subscriptions"), len(raw))
        entity, rest = "/".join(segments[:at]), segments[at + 1 :]
        if at == len(raw):
            return cls(Resource.ENTITY, entity)
        if not rest:
            return cls(Resource.SUBSCRIPTIONS, entity)
        if len(rest) == 1:
            return cls(Resource.SUBSCRIPTION, entity, rest[0])
        if rest[1].lower() == "rules" and len(rest) <= 3:
            if len(rest) == 2:
                return cls(Resource.RULES, entity, rest[0])
            return cls(Resource.RULE, entity, rest[0], rest[2])
        raise InvalidArgumentError("The path names no queue, topic, subscription or rule.")

    @property
    def path(self) -> str:
        """The resource's path below the namespace, with the capitals that clients expect in an ``id``."""
        match self.resource:
            case Resource.ROOT:
                return ""
            case Resource.NAMESPACE:
                return "$namespaceinfo"
            case Resource.QUEUES:
                return "$Resources/queues"
            case Resource.TOPICS:
                return "$Resources/topics"
            case Resource.EVENT_HUBS:
                return "$Resources/eventhubs"
            case Resource.HYBRID_CONNECTIONS:
                return "$Resources/hybridconnections"
            case Resource.CONSUMER_GROUPS:
                return f"{self.entity}/ConsumerGroups"
            case Resource.CONSUMER_GROUP:
                return f"{self.entity}/ConsumerGroups/{self.group}"
            case Resource.ENTITY:
                return self.entity
            case Resource.SUBSCRIPTIONS:
                return f"{self.entity}/Subscriptions"
            case Resource.SUBSCRIPTION:
                return f"{self.entity}/Subscriptions/{self.subscription}"
            case Resource.RULES:
                return f"{self.entity}/Subscriptions/{self.subscription}/Rules"
            case Resource.RULE:
                return f"{self.entity}/Subscriptions/{self.subscription}/Rules/{self.rule}"
