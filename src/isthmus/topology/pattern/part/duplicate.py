"""The treatment of a copy that is sent again after a crash, as a task declares it.

What it is: the settings `duplicates` and `duplicate_detection`, and their reading. What it is not: the decision of a route, which
queries its target (`isthmus.message.duplicate_key`). See docs/explanation/guarantees.md.
"""

from __future__ import annotations

from dataclasses import replace

from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting

__all__ = ["DETECTION_WINDOW_MS", "DUPLICATES", "DUPLICATES_BY_ORIGIN", "DUPLICATE_DETECTION", "read_duplicates"]

DETECTION_WINDOW_MS = 600_000
"""The history window if a task needs duplicate detection and declares none: the service's default."""

DUPLICATES = Setting(
    name="duplicates",
    kind=Kind.CHOICE,
    choices=("auto", "origin", "message-id", "allow"),
    default="auto",
    description="The treatment of a copy that is sent again after a crash. `origin`: a copy is identified by namespace, "
    "entity, sequence number and time of its entry point; a namespace of isthmus drops the second one "
    "within an hour, whatever the MessageIds are, and at Azure, whose topics then have duplicate detection, the "
    "copy's MessageId is derived from these and the sender's own is in the property `repl-message-id`. "
    "`message-id`: the topics have duplicate detection, which drops every message with the MessageId of an earlier one, "
    "of one publisher and of several: only for ids that are unique over all publishers. `allow`: both are kept, and "
    "`isthmus verify` counts them. `auto`: `origin` at namespaces of isthmus, `allow` at Azure.",
    example="origin",
)

DUPLICATES_BY_ORIGIN = replace(
    DUPLICATES,
    choices=("auto", "origin", "allow"),
    description="The treatment of a copy that is sent again after a crash. `origin`: a copy is identified by namespace, "
    "entity, sequence number and time of its entry point; a namespace of isthmus drops the second one "
    "within an hour, whatever the MessageIds are, and at Azure, whose targets then have duplicate detection, the "
    "copy's MessageId is derived from these and the sender's own is in the property `repl-message-id`. `allow`: both are "
    "kept, and `isthmus verify` counts them. `auto`: `origin` at namespaces of isthmus, `allow` at Azure. There is no "
    "`message-id`: equal MessageIds of different sources are different messages.",
)

DUPLICATE_DETECTION = Setting(
    name="duplicate_detection",
    kind=Kind.DURATION,
    minimum=20_000,
    maximum=604_800_000,
    may_be_off=True,
    description="History window of the topics' duplicate detection, with `duplicates: message-id` (there `10m` "
    "unless it is written). A window without `duplicates` means `message-id`. Whether a topic has "
    "detection is fixed when it is created.",
    example="10m",
)


def read_duplicates(values: Values, document: Document) -> tuple[str, int]:
    """The treatment of duplicates, and the window of detection by MessageId."""
    window_ms = values["duplicate_detection"]
    if not values.written("duplicates"):
        return ("message-id", window_ms) if window_ms else ("auto", 0)
    duplicates = values["duplicates"]
    place = values.at("duplicate_detection")
    if duplicates == "message-id":
        if window_ms == 0:
            document.fault(place, "duplicates: message-id needs duplicate detection", "write duplicate_detection: 10m")
        return duplicates, DETECTION_WINDOW_MS if window_ms is None else window_ms
    if window_ms:
        document.fault(
            place,
            f"duplicate_detection compares MessageIds, which duplicates: {duplicates} does not do",
            "remove it, or write duplicates: message-id",
        )
    return duplicates, 0
