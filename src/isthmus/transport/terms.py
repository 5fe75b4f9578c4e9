"""How a link to a broker of any kind is attached.

What it is: name and termini of a link whose source or target is more than an address (OASIS AMQP 1.0, 2.6.3, 3.5.3, 3.5.4). What it is
not: a link (`receiver`, `sender`).
"""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.amqp.performative import Source, Target

__all__ = ["LinkTerms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTerms:
    """The terms of one link.

    Attributes:
        name: of the link; generated where empty.
        source: of a receiver.
        target: of a sender.
        drains: whether the sender of a receiver's link can drain; from one that cannot the credit is taken back.
        closes: whether closing the link also removes its terminus at the broker; a durable subscription must stay.
    """

    name: str = ""
    source: Source | None = None
    target: Target | None = None
    closes: bool = True
    drains: bool = True
