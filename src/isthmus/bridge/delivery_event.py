"""The events and effects of the delivery machine.

What it is: the events and effects of `delivery`, values only. Payloads are encoded messages, positions are the source's
numbers of messages; the machine interprets neither. What it is not: a port; the shell around the machine turns a
system's answers into events and carries out the effects.

Invariants:
    I1. Effects are carried out in the order in which they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from isthmus.bridge.refusal import Refusal

__all__ = [
    "DIVERT",
    "Disposition",
    "Dispose",
    "Effect",
    "Event",
    "Fail",
    "Flush",
    "Flushed",
    "Granted",
    "HandedOver",
    "Pause",
    "Progressed",
    "Lost",
    "Open",
    "Opened",
    "Outcome",
    "Resume",
    "Send",
    "Settle",
    "Stopped",
    "Tick",
]


DIVERT = "divert"
"""The disposition of a message that was sent to another entity than the target and acknowledged there: it is completed at its source. In a
row it is followed by `:` and the name by which the route knows that entity (`RouteSpec.diverts`).
"""


class Disposition(NamedTuple):
    """The disposition of a message at its source: `complete`, `dead-letter`, `defer`, `abandon` or `divert`."""

    kind: str
    reason: str = ""
    description: str = ""


# ---- events


class HandedOver(NamedTuple):
    """Messages to send, in the order of the source, and rows that get another disposition instead. `is_alone`: none of them may go
    into an envelope.
    """

    payloads: Sequence[bytes]
    positions: Sequence[int] | None
    disposed: Sequence[tuple[int | None, Disposition]] = ()
    is_alone: bool = False


class Flush(NamedTuple):
    """A flush row."""

    number: int


class Opened(NamedTuple):
    """The target is connected; `message_bytes` is the largest message that it takes, 0 where it named no limit. In one envelope it
    takes `envelope_messages`; below 2, the machine makes none that is not configured.
    """

    message_bytes: int = 0
    envelope_messages: int = 0


class Granted(NamedTuple):
    """How many deliveries may be sent now."""

    credit: int


class Stopped(NamedTuple):
    """The target reports that it accepts nothing at present, and grants nothing; empty: it does again. Messages in flight keep waiting for their
    outcomes.
    """

    reason: str


class Progressed(NamedTuple):
    """More of the sent deliveries' bytes have arrived at the remote machine, or it has accepted them and reports their outcomes later; these are still
    missing.
    """


class Outcome(NamedTuple):
    """The outcome of deliveries `first` to `last`, ordinals of this connection; `refusal` is None where they were accepted.

    An envelope that its target divides may be refused in part: `taken` are the messages of it that were accepted nevertheless, ascending
    numbers within the envelope, fewer than it has. Only where `first` is `last`.
    """

    first: int
    last: int
    refusal: Refusal | None = None
    taken: Sequence[int] = ()


class Lost(NamedTuple):
    """The connection is lost, or could not be made."""

    refusal: Refusal


class Tick(NamedTuple):
    """Time has passed."""


Event = HandedOver | Flush | Opened | Granted | Progressed | Stopped | Outcome | Lost | Tick

# ---- effects


class Send(NamedTuple):
    """Send a delivery for each payload, or one envelope that holds all of them."""

    payloads: Sequence[bytes]
    is_envelope: bool = False


class Settle(NamedTuple):
    """The target accepted these messages: complete them at their source."""

    positions: Sequence[int]


class Dispose(NamedTuple):
    """Give a message another disposition at its source."""

    position: int | None
    disposition: Disposition


class Flushed(NamedTuple):
    """Everything handed over before this flush row is finished."""

    number: int


class Pause(NamedTuple):
    """Take back the credit at the source; `text` says why."""

    text: str


class Resume(NamedTuple):
    """Grant credit at the source again."""


class Open(NamedTuple):
    """Connect to the target; `Opened` or `Lost` answers."""


class Fail(NamedTuple):
    """The route cannot continue."""

    refusal: Refusal
    timed_out_seconds: float = 0.0


Effect = Send | Settle | Dispose | Flushed | Pause | Resume | Open | Fail
