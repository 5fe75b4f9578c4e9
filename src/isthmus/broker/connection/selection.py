"""The sources that a plain receiver may have.

What it is: the refusal of selectors, and the recognition of browsers, which JMS clients ask for at attach. What it is not:
the session filter (`isthmus.broker.link.session_attach`), the positions in event hubs (`isthmus.broker.hub.gate`), or browsing
itself (`isthmus.broker.link.browse`).
Spec: OASIS AMQP 1.0 3.5.3, 3.5.6; Apache's AMQP filter extensions, selector-filter.

Invariants:
    I1. No receiver gets, locks or removes messages that its source excludes: a source that we cannot serve is refused,
        because an echo would confirm to the client that it is in force.
"""

from __future__ import annotations

from typing import Any

from isthmus.amqp.performative import Source
from isthmus.amqp.types import Described
from isthmus.errors import UnsupportedError

__all__ = ["browses", "check_selection"]

_SELECTOR = "apache.org:selector-filter:string"
_SELECTOR_CODE = 0x468C_00000004
_COPY = "copy"


def browses(source: Any) -> bool:
    """Whether the source asks for copies (browsing), which leave the messages in the entity."""
    return isinstance(source, Source) and source.distribution_mode == _COPY


def check_selection(source: Any) -> None:
    """Refuses features that only some brokers have.

    Raises:
        UnsupportedError: the source has a selector.
    """
    if not isinstance(source, Source):
        return
    for key, value in (source.filter or {}).items():
        # Clients may choose any key, e.g. Qpid JMS writes 'jms-selector'; the descriptor identifies the filter.
        descriptor = value.descriptor if isinstance(value, Described) else key
        if descriptor == _SELECTOR_CODE or str(descriptor) == _SELECTOR or str(key) == _SELECTOR:
            raise UnsupportedError("Messages cannot be selected by a receiver; subscriptions have rules for that.")
