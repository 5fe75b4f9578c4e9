"""What streams of RabbitMQ are not asked."""

from __future__ import annotations

from harness.conformance.conformance_waiver import SCRIPT
from isthmus.testing.bridge.pair import Ability

WAIVERS = {
    ("rabbitmq-streams", "", Ability.SCRIPT.value): SCRIPT,
    (
        "rabbitmq-streams",
        "",
        Ability.LOCKS.value,
    ): "a log locks nothing: what was delivered is the reader's until another opens",
    ("rabbitmq-streams", "", Ability.SKEWS.value): "no message of a stream expires by its own time to live",
}
