"""isthmus.connectors.eventhubs.dead_letter."""

from __future__ import annotations

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.connectors.eventhubs.dead_letter import DeadLetterHub
from isthmus.connectors.kafka.mapping.record import DEAD_LETTER_PLACE


def test_a_message_names_the_event_hub_that_the_connection_has_named() -> None:
    """Of an IoT hub that is known once it has redirected the reader."""
    path = "events"
    hub = DeadLetterHub("dead", lambda: path, lambda: None)
    path = "iothub-ehub-contoso"
    hub.add((2 << PARTITION_SHIFT) + 7, section.encode_message(b"x"), Disposition("dead-letter", "Bad", "it is"))
    event = hub._waiting[0].payload
    reported = section.decode_map(event, section.locate(event).application_properties)
    assert reported[DEAD_LETTER_PLACE] == "iothub-ehub-contoso/2/7"
