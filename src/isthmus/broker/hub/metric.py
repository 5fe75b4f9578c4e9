"""The end of a partition, sent with every event to receivers that ask for it.

What it is: the delivery annotations of the capability `com.microsoft:enable-receiver-runtime-metric`, put into encoded
events. Spec: docs/explanation/protocol.md, Event Hubs.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError, value_end
from isthmus.amqp.types import Timestamp
from isthmus.entities.hub import PartitionState

__all__ = ["RUNTIME_METRIC", "with_metric"]

RUNTIME_METRIC = "com.microsoft:enable-receiver-runtime-metric"


def with_metric(events: Sequence[bytes], state: PartitionState, now_ms: int) -> list[bytes]:
    """The events with the properties of their partition's last event.

    Args:
        events: encoded, sections in order, each with message annotations.
        state: of the partition.
        now_ms: wall time.
    """
    metric = {
        "last_enqueued_sequence_number": state.next - 1,
        "last_enqueued_offset": str(state.last_offset),
        "last_enqueued_time_utc": Timestamp(state.last_enqueued_ms),
        "runtime_info_retrieval_time_utc": Timestamp(now_ms),
    }
    encoded = section.encode_map_section(section.DELIVERY_ANNOTATIONS, metric)
    extended = []
    for event in events:
        if event[2] == section.MESSAGE_ANNOTATIONS:
            extended.append(encoded + event)
            continue
        at = value_end(event, 3) if event[2] == section.HEADER else 0
        if event[at + 2] != section.DELIVERY_ANNOTATIONS:
            extended.append(event[:at] + encoded + event[at:])
            continue
        end = value_end(event, at + 3)
        try:
            own = {**section.decode_map(event, (at, end)), **metric}
        except (
            CodecError
        ):  # the producer's own annotations cannot be read: the event is sent unchanged, and the next ones too
            extended.append(event)
            continue
        extended.append(event[:at] + section.encode_map_section(section.DELIVERY_ANNOTATIONS, own) + event[end:])
    return extended
