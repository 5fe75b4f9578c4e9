"""Who may read a partition: owner levels within a consumer group.

What it is: the receivers of each (partition, consumer group), and the rules by which one replaces another.
Spec: docs/explanation/protocol.md, Event Hubs, Administration.

Invariants:
    I1. There is at most one receiver with an owner level, and with it none without one.
    I2. A receiver of a higher or the same level replaces the present ones; one of a lower level, or of none, is refused.
    I3. Without owner levels there are at most five.
"""

from __future__ import annotations

from isthmus.broker.hub.sender_link import HubSenderLink
from isthmus.entities.hub import Partition
from isthmus.errors import LinkStolenError, QuotaExceededError

__all__ = ["RECEIVERS_LIMIT", "Ownership"]

# The service's limit of receivers without an owner level.
RECEIVERS_LIMIT = 5


class Ownership:
    """The receivers of a namespace's event hubs."""

    def __init__(self) -> None:
        self._receivers: dict[tuple[int, str], dict[HubSenderLink, None]] = {}

    def check(self, partition: Partition, group: str, name: str, epoch: int | None) -> None:
        """Refuses a receiver that is not allowed.

        Args:
            partition: that it wants to read.
            group: its consumer group.
            name: of the receiver.
            epoch: its owner level, if any.

        Raises:
            LinkStolenError: there is a receiver of a higher level, or one of any level where this one has none.
            QuotaExceededError: the limit is reached.
        """
        receivers = self._receivers.get((partition.number, group.lower()), {})
        owner = next((each for each in receivers if each.epoch is not None), None)
        if owner is not None and owner.epoch is not None and (epoch is None or epoch < owner.epoch):
            wanted = "without an epoch" if epoch is None else f"with epoch '{epoch}'"
            raise LinkStolenError(
                f"Receiver '{owner.name}' with a higher epoch of '{owner.epoch}' already exists. Receiver '{name}' "
                f"{wanted} cannot be created. Make sure you are creating receivers with increasing epoch values, or "
                "that all old epoch receivers are closed."
            )
        if epoch is None and len(receivers) >= RECEIVERS_LIMIT:
            raise QuotaExceededError(
                f"Exceeded the maximum number of allowed receivers per partition in a consumer group, which is "
                f"{RECEIVERS_LIMIT}: '{partition.path}', consumer group '{group}'. Receivers: "
                f"{', '.join(repr(each.name) for each in receivers)}."
            )

    def add(self, partition: Partition, group: str, sender_link: HubSenderLink) -> None:
        """Adds a receiver that `check` allowed; one with an owner level replaces the others."""
        receivers = self._receivers.setdefault((partition.number, group.lower()), {})
        if sender_link.epoch is not None:
            for other in list(receivers):
                level = "no epoch" if other.epoch is None else f"epoch '{other.epoch}'"
                other.expel(
                    LinkStolenError(
                        f"New receiver '{sender_link.name}' with higher epoch of '{sender_link.epoch}' is created hence current "
                        f"receiver '{other.name}' with {level} is getting disconnected. If you are recreating the "
                        "receiver, make sure a higher epoch is used."
                    )
                )
        self._receivers.setdefault((partition.number, group.lower()), {})[sender_link] = None

    def leave(self, partition: Partition, group: str, sender_link: HubSenderLink) -> None:
        """Removes a receiver; no error if it is removed already."""
        key = (partition.number, group.lower())
        receivers = self._receivers.get(key, {})
        receivers.pop(sender_link, None)
        if not receivers:
            self._receivers.pop(key, None)

    def statistics(self) -> dict[str, int]:
        """How many receivers there are."""
        return {"event_receivers": sum(map(len, self._receivers.values()))}
