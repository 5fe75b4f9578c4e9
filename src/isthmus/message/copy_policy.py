"""What a route changes of the messages that it copies, as data.

What it is: the declared policy that a pattern gives its routes and that the rewriter of the target's connector carries out. It
reaches the workers as one text in the target's options. What it is not: the rewriting itself (`message_rewriter` of a
connector), nor the mark and the provenance, which every copy gets. See docs/explanation/guarantees.md.

Invariants:
    I1. `CopyPolicy.from_text(policy.to_text()) == policy`.
    I2. The default changes nothing beyond mark, provenance and what is left of TimeToLive; its text is empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from isthmus.errors import InvalidArgumentError

__all__ = ["CopyPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPolicy:
    """How a copy differs from its original.

    Attributes:
        ttl_ceiling_ms: the copy's TimeToLive is what is left of the original's, and at most this; 0: no ceiling.
        deadline_ms: the copy's TimeToLive is what is left of this time since the message first entered a namespace, by its
            provenance or else by its enqueued time at the source; one with nothing left is dead-lettered at the source with the
            reason `DeadlinePassed`; 0: no deadline.
        deadline_spent_ms: the part of the deadline that counts as spent before the message was enqueued at the source, where the time
            of its first entry is unknown: a broker gives a forwarded message a new enqueued time.
        properties: application properties that every copy gets: name to text, number or boolean.
        removed: application properties that no copy keeps.
        keeps_dead_letter: whether why and where the original was dead-lettered is on the copy, in `repl-dead-letter-reason`,
            `repl-dead-letter-description` and `repl-dead-letter-source`, while the broker's own properties go.
        session_from: where a copy's SessionId comes from: empty, the original's; `partition-key`, the original's PartitionKey.
        partition_from: where a copy's PartitionKey comes from: empty, the original's; `session-id`, the original's SessionId.
        dead_letters_returning: whether a message that would return to an entity where it has been is dead-lettered at its source,
            which holds the only copy, instead of completed.
        makes_message_ids: whether a copy of a message without MessageId gets one made of its origin and position.
    """

    ttl_ceiling_ms: int = 0
    deadline_ms: int = 0
    deadline_spent_ms: int = 0
    properties: Mapping[str, str | int | bool] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    keeps_dead_letter: bool = False
    session_from: str = ""
    partition_from: str = ""
    dead_letters_returning: bool = False
    makes_message_ids: bool = False

    def to_text(self) -> str:
        """The attributes that differ from the default, as JSON; empty where none does."""
        default = CopyPolicy()
        values = {
            each.name: value
            for each in fields(self)
            if (value := getattr(self, each.name)) != getattr(default, each.name)
        }
        return json.dumps(values, sort_keys=True, default=dict) if values else ""

    @classmethod
    def from_text(cls, text: str) -> CopyPolicy:
        """The policy of a text from `to_text`.

        Raises:
            InvalidArgumentError: the text is no policy.
        """
        if not text:
            return cls()
        try:
            values: dict[str, Any] = json.loads(text)
            values["removed"] = tuple(values.get("removed", ()))
            return cls(**values)
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(f"the copy policy cannot be read ({error})") from None
