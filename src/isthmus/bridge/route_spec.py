"""The description of a route for the processes that carry it.

What it is: the description of a route that the driver sends to the reader, and the reader to the sink, as JSON. It contains
references to secrets, never secrets. What it is not: the route of a federation file (`isthmus.topology`), from which it is made.

Invariants:
    I1. `RouteSpec.from_json(spec.to_json()) == spec`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["TARGET_SECONDS", "End", "RouteSpec"]

TARGET_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class End:
    """A source or a target: the kind of its connector and the options for that.

    Attributes:
        alias: the operator's name of the namespace.
    """

    kind: str
    alias: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSpec:
    """How a route is carried.

    Attributes:
        name: unique in a run, e.g. `flights/ewr-jfk`.
        source: of the messages.
        target: of the messages.
        claim: the claim that must be held while it is carried; empty: none.
        ordered: whether the order of the source is kept.
        is_strict: whether it is kept also across refusals, with one delivery in flight.
        competing: whether several readers may read its source at once, where its order is not kept.
        only_present: end when all messages that were at the source at the beginning are moved.
        window: messages that may be delivered and not settled.
        window_bytes: their bytes; one message alone may be larger.
        in_flight: messages that may be sent and not acknowledged.
        envelope_messages: messages in one delivery at most: 1, each is sent alone; 0, as many as the credit makes necessary.
        block_refused: whether a message that the target refuses individually blocks the route; otherwise it is dead-lettered.
        target_seconds: how long the target may accept nothing before the route releases everything and begins again.
        rate: its rate limit, as `isthmus.topology.rate` writes it; empty: no limit.
        steps: the steps of its rows, each as JSON with one key, the step's kind.
        diverts: entities for messages that steps do not pass on, by the name that a row's disposition has for them.
        diverted_from: the origin that the diverted copies name.
    """

    name: str
    source: End
    target: End
    claim: str = ""
    ordered: bool = True
    is_strict: bool = False
    competing: bool = True
    only_present: bool = False
    window: int = 16_000
    window_bytes: int = 64 << 20
    in_flight: int = 12_000
    envelope_messages: int = 0
    block_refused: bool = False
    target_seconds: float = TARGET_SECONDS
    rate: str = ""
    steps: tuple[str, ...] = ()
    diverts: Mapping[str, End] = field(default_factory=dict)
    diverted_from: str = ""

    @property
    def is_spread(self) -> bool:
        """Whether the readers of all slots carry it at once; not with a rate limit, which each of them would reach."""
        return self.competing and not self.ordered and not self.rate

    @property
    def step_names(self) -> tuple[str, ...]:
        """The operator's names of the steps: the kind, and the function of a step `python`."""
        return tuple(map(_name_of, self.steps))

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RouteSpec:
        """From a JSON object.

        Raises:
            TypeError: a field is unknown or missing.
        """
        values = dict(document)
        values["source"], values["target"] = End(**values["source"]), End(**values["target"])
        values["steps"] = tuple(values.get("steps", ()))
        values["diverts"] = {name: End(**end) for name, end in values.get("diverts", {}).items()}
        return cls(**values)


def _name_of(step: str) -> str:
    try:
        ((kind, settings),) = json.loads(step).items()
    except (ValueError, TypeError, AttributeError):
        return step
    function = settings.get("function") if isinstance(settings, dict) else None
    return f"{kind} {function}" if function else str(kind)
