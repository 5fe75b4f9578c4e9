"""The event reader for a source's options."""

from __future__ import annotations

from isthmus.connectors.eventhubs.mapping import EventReader
from isthmus.connectors.eventhubs.option import SourceOptions

__all__ = ["reader_of"]


def reader_of(options: SourceOptions, shown: tuple[str, ...] = ()) -> EventReader:
    """An event reader for a source's options; annotations whose names begin with one of `shown` become application properties."""
    return EventReader(
        options.topic.strip("/"),
        gives_ids=options.message_ids == "offset",
        names_partition=options.keyless == "partition",
        tells_system=options.system_properties,
        shown=shown,
    )
