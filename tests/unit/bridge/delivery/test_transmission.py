"""isthmus.bridge.delivery.transmission."""

from __future__ import annotations

from isthmus.bridge.delivery.outbox import Outbox
from isthmus.bridge.delivery.settings import DeliverySettings
from isthmus.bridge.delivery.target_link import TargetLink
from isthmus.bridge.delivery.transmission import Transmission
from isthmus.bridge.delivery_event import Effect, Send
from isthmus.bridge.index_set import IndexSet


class Route:
    """Messages of these lengths to send to a target with so much credit."""

    def __init__(
        self, *lengths: int, credit: int = 100, limit: int = 0, alone: tuple[int, ...] = (), is_blocking: bool = False
    ) -> None:
        settings = DeliverySettings(block_refused=is_blocking)
        outbox = Outbox()
        outbox.add([b"x" * each for each in lengths], None)
        self.end = outbox.end
        self.link = TargetLink(settings.window, settings.window, settings.window)
        self.link.opened(limit)
        self.link.credit = credit
        singles = IndexSet()
        for index in alone:
            singles.add(index, index + 1)
        self.transmission = Transmission(settings, outbox, self.link, singles)

    def send(self, size: int = 0) -> tuple[int, list[int], list[list[int]]]:
        """Index behind the last, the too large, and the lengths in each effect."""
        effects: list[Effect] = []
        reached, refused = self.transmission.send(0, self.end, size, effects)
        for _, refusal in refused:
            assert refusal.reason == "MessageTooLarge"
            assert str(refusal) == "The message has 9 bytes; the limit is 5 bytes."
        too_large = [index for index, _ in refused]
        return (
            reached,
            too_large,
            [[len(each) for each in effect.payloads] for effect in effects if type(effect) is Send],
        )


def test_i1_no_more_is_sent_than_there_is_credit_for() -> None:
    route = Route(1, 2, 3, credit=2)
    assert route.send() == (2, [], [[1, 2]])
    assert route.link.credit == 0
    assert route.link.flight.outstanding == 2


def test_i1_what_is_too_large_is_reported_and_not_sent() -> None:
    route = Route(1, 9, 3, limit=5)
    assert route.send() == (3, [1], [[1, 3]])
    assert route.link.flight.outstanding == 2


def test_i2_where_refusals_block_nothing_is_sent_behind_it() -> None:
    assert Route(1, 9, 3, limit=5, is_blocking=True).send() == (2, [1], [[1]])


def test_messages_go_into_envelopes_unless_they_are_to_go_alone() -> None:
    route = Route(1, 2, 3, 4, alone=(2,))
    assert route.send(size=10) == (4, [], [[1, 2], [3, 4]])
    assert route.link.flight.outstanding == 3, "an envelope, and two messages alone"
