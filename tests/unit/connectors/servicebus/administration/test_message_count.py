"""The counts of an entity's messages in runtime properties."""

from __future__ import annotations

from types import SimpleNamespace

from isthmus.connectors.servicebus.administration.message_count import Counts


def test_messages_to_forward_are_counted_once() -> None:
    """The whole count has them; they are no deferred ones."""
    found = SimpleNamespace(
        total_message_count=18,
        active_message_count=1,
        scheduled_message_count=2,
        transfer_message_count=3,
        dead_letter_message_count=4,
        transfer_dead_letter_message_count=5,
    )
    assert Counts.of(found) == Counts(active=1, scheduled=2, transfer=3, dead=9, other=3)
    assert Counts.of(found).total == 18
