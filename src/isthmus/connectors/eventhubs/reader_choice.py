"""Which event reader the options of a source ask for."""

from __future__ import annotations

from isthmus.connectors.eventhubs.mapping import EventReader
from isthmus.connectors.eventhubs.option import SourceOptions

__all__ = ["reader_of"]


def reader_of(options: SourceOptions, shown: tuple[str, ...] = ()) -> EventReader:
    """Reads events as a source's options want it; annotations whose names begin as `shown` says become application properties."""
    return EventReader(
        options.topic.strip("/"),
        gives_ids=options.message_ids == "offset",
        names_partition=options.keyless == "partition",
        tells_system=options.system_properties,
        shown=shown,
    )
