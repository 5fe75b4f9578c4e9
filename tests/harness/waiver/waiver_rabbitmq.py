"""What RabbitMQ is not asked."""

from __future__ import annotations

from harness.conformance.conformance_waiver import SCRIPT
from isthmus.testing.bridge.pair import Ability

WAIVERS = {
    ("rabbitmq", "", Ability.SCRIPT.value): SCRIPT,
    (
        "rabbitmq",
        "",
        Ability.LOCKS.value,
    ): "a delivery is the consumer's for as long as its channel lives: nothing is renewed",
    ("rabbitmq", "", Ability.SKEWS.value): "RabbitMQ tells no time, nor since when a message waits",
    ("", "rabbitmq", Ability.DEDUPLICATES.value): "a queue suppresses no duplicates",
}
