"""Entities and members of tasks.

What it is: the reading of alternative settings (`topic`, `queue`) and of lists of members. What it is
not: the settings themselves, which each pattern declares.
"""

from __future__ import annotations

from isthmus.topology.file.document import Document, Place, Values

__all__ = ["OWN_NAME", "check_own_name", "read_entity", "read_members"]

OWN_NAME = "isthmus."
"""The prefix of isthmus's own names."""


def read_entity(name: str, values: Values, document: Document) -> str:
    """The entity of a task that has exactly one of `topic` and `queue`; empty if it is faulty."""
    if values.written("topic") and values.written("queue"):
        document.fault(values.at("queue"), f"task {name} has both topic and queue", "remove one")
    elif not values.written("topic") and not values.written("queue"):
        document.fault(values.place, f"task {name} has no topic", f"write topic: {name}, or queue: {name}")
    entity: str = values["topic"] or values["queue"] or ""
    check_own_name(entity, values.at("topic") if values["topic"] else values.at("queue"), document)
    return entity


def check_own_name(entity: str, place: Place, document: Document) -> None:
    """Fault an entity's name with the prefix of isthmus's own names."""
    if entity.lower().startswith(OWN_NAME):
        document.fault(place, "names that begin with 'isthmus.' are isthmus's own", "write another name")


def read_members(values: Values, setting: str, pattern: str, document: Document) -> tuple[str, ...]:
    """The aliases of a list of two or more, each once; empty if the list is faulty."""
    if values[setting] is None:
        return ()
    members: list[str] = []
    what = "member" if setting == "members" else "source"
    for alias, place in values[setting]:
        if alias in members:
            document.fault(place, f"{what} {alias} appears twice", "remove one")
        else:
            members.append(alias)
    if len(values[setting]) < 2:
        document.fault(values.at(setting), f"{pattern} needs two {what}s or more", f"write {setting}: [ewr, jfk]")
    return tuple(members)
