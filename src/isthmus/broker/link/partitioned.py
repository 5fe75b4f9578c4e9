"""Links on partitioned entities.

What it is: a `ReceiverLink` and a `SenderLink` whose steps each concern one fragment: runs of messages are split by their
keys, dispositions by their lock tokens, so that each delivery's outcome is that of its own store. What it is not:
the choice of fragments (`isthmus.entities.fragment`).
Spec: docs/explanation/protocol.md, Entities.

Invariants:
    I1. A delivery is accepted or settled as soon as it is durable in its own fragment, independent of other stores.
    I2. A batch envelope is one unit, and goes to one fragment.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.broker.link.receiver_link import ReceiverLink
from isthmus.broker.link.sender_link import SenderLink
from isthmus.broker.link.settlement import Settlement
from isthmus.broker.link.verdict import Verdict

__all__ = ["PartitionedReceiverLink", "PartitionedSenderLink"]


class PartitionedReceiverLink(ReceiverLink):
    """One link on which a client sends to a partitioned entity; arguments as for `ReceiverLink`."""

    def _take_run(self, payloads: list[bytes], first: int, settled: bool) -> None:
        at = 0
        for count in self._destination.runs(payloads):
            super()._take_run(payloads[at : at + count], first + at, settled)
            at += count


class PartitionedSettlement(Settlement):
    """The settlement of one link on which a client receives from a partitioned entity; arguments as for `Settlement`."""

    def settle(self, ids: Sequence[int], tokens: list[bytes], verdict: Verdict, settled: bool) -> None:
        parts: dict[int, tuple[list[int], list[bytes]]] = {}
        for each, token in zip(ids, tokens, strict=True):
            part = parts.setdefault(self._queue.fragment_index(token), ([], []))
            part[0].append(each)
            part[1].append(token)
        for part_ids, part_tokens in parts.values():
            super().settle(part_ids, part_tokens, verdict, settled)


class PartitionedSenderLink(SenderLink):
    """One link on which a client receives from a partitioned entity; arguments as for `SenderLink`."""

    settlement_type = PartitionedSettlement
