"""What the source of a plain receiver may ask for.

What it is: the refusal of selectors and of browsing, which JMS clients ask for at attach. What it is not: the session
filter (`isthmus.broker.session_attach`) or the positions in event hubs (`isthmus.broker.hub.gate`).
Spec: AMQP 1.0 3.5.3; Apache's AMQP filter extensions, selector-filter.

Invariants:
    I1. No receiver gets, locks or removes what its source excludes: a source that we cannot serve is refused, as one
        that was echoed would tell the client that it is in force.
"""

from __future__ import annotations

from typing import Any

from isthmus.amqp.performative import Source
from isthmus.amqp.types import Described
from isthmus.errors import UnsupportedError

__all__ = ["check_selection"]

_SELECTOR = "apache.org:selector-filter:string"
_SELECTOR_CODE = 0x468C_00000004
_COPY = "copy"


def check_selection(source: Any) -> None:
    """Refuse what only some brokers do.

    Raises:
        UnsupportedError: the source has a selector, or asks for copies that leave the messages where they are.
    """
    if not isinstance(source, Source):
        return
    if source.distribution_mode == _COPY:
        raise UnsupportedError(
            "A receiver cannot browse; peek at messages by requests to $management instead (distribution-mode 'copy')."
        )
    for key, value in (source.filter or {}).items():
        # Clients are free in the key, e.g. Qpid JMS writes 'jms-selector'; the descriptor tells.
        descriptor = value.descriptor if isinstance(value, Described) else key
        if descriptor == _SELECTOR_CODE or str(descriptor) == _SELECTOR or str(key) == _SELECTOR:
            raise UnsupportedError("Messages cannot be selected by a receiver; subscriptions have rules for that.")
