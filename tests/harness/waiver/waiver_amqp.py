"""What AMQP 1.0 brokers (`amqp`, tried on ActiveMQ Artemis) are not asked."""

from __future__ import annotations

from harness.conformance.conformance_waiver import SCRIPT
from isthmus.testing.bridge.pair import Ability

WAIVERS = {
    ("amqp", "", Ability.SCRIPT.value): SCRIPT,
    (
        "amqp",
        "",
        Ability.LOCKS.value,
    ): "what was delivered is the consumer's for as long as its link stands, without a time",
    (
        "amqp",
        "",
        Ability.SKEWS.value,
    ): "messages expire by a time to live that each node counts from when it has got them",
}
