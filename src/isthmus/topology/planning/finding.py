"""The findings of planning: changes, notes and faults of all entities."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from isthmus.errors import Fault
from isthmus.topology.duplicate import keeps_keys
from isthmus.topology.file.duration import INFINITE_MS, format_ms
from isthmus.topology.model import Federation
from isthmus.topology.planning.change import Change
from isthmus.topology.state import NamespaceState, QueueState, SubscriptionState, TopicState

__all__ = ["OWN", "Findings", "fitted", "settled"]

OWN = "isthmus."
"""The prefix of the names of all entities that isthmus creates for itself."""

_Entity = TypeVar("_Entity", TopicState, QueueState)
_Receiver = TypeVar("_Receiver", QueueState, SubscriptionState)


@dataclass
class Findings:
    """The findings of planning a federation.

    Attributes:
        federation: the federation of the plan.
        changes: in the order in which they were found.
        notes: for the operator.
        faults: conflicts that no change can resolve.
    """

    federation: Federation
    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def fault(self, alias: str, message: str, hint: str) -> None:
        """A fault at a namespace."""
        place = self.federation.namespaces[alias].place
        self.faults.append(Fault(f"namespace {alias}: {message}", hint, self.federation.file, place.line, place.column))

    def check_duplicates(self, alias: str, what: str, entity: _Entity, existing: _Entity) -> bool:
        """Note or fault duplicate detection that differs from the wanted one. Returns whether its window has to change."""
        window_ms = entity.duplicate_detection_ms
        if window_ms == 0 and existing.duplicate_detection_ms:
            self.notes.append(
                f"{what} at {alias} has duplicate detection "
                f"({format_ms(existing.duplicate_detection_ms)}), which cannot be turned off: a message is dropped there "
                "if an earlier one had its MessageId; only copies that are identified by origin are exempt"
            )
        if window_ms and not existing.duplicate_detection_ms:
            self.fault(
                alias,
                f"{what} exists without duplicate detection, which cannot be turned on",
                f"write another value of duplicates in the task, or {_made_again(what.partition(' ')[0])}",
            )
        return bool(window_ms and existing.duplicate_detection_ms and window_ms != existing.duplicate_detection_ms)

    def note_created_detection(self, alias: str, what: str, entity: _Entity) -> None:
        """Note that an entity is created with duplicate detection."""
        if entity.duplicate_detection_ms:
            self.notes.append(
                f"duplicate detection will be on for {what} at {alias} "
                f"({format_ms(entity.duplicate_detection_ms)}): messages with equal MessageId are dropped within it, "
                "of one publisher and of several"
            )

    def check_partitioned(self, alias: str, what: str, entity: _Entity, existing: _Entity) -> None:
        """Fault partitioning that differs from the wanted one."""
        if entity.partitioned is False and existing.partitioned:
            self.fault(
                alias,
                f"{what} is partitioned and keeps no order, which cannot be changed",
                f"write ordering: none in the task, or {_made_again(what.partition(' ')[0])}",
            )
        if entity.partitioned and existing.partitioned is False:
            self.fault(
                alias,
                f"{what} is not partitioned, which cannot be changed",
                _made_again(what.partition(" ")[0]),
            )

    def check_receiver(self, alias: str, what: str, entity: _Receiver, existing: _Receiver) -> bool:
        """Fault sessions that differ from the wanted ones, or that do not allow the forwarding. Returns whether there is no fault."""
        kind = what.partition(" ")[0]
        if entity.requires_session is not None and entity.requires_session != bool(existing.requires_session):
            does = "requires sessions" if existing.requires_session else "does not require sessions"
            self.fault(alias, f"{what} {does}, which cannot be changed", _made_again(kind))
            return False
        if entity.forward_to and existing.requires_session:
            # Microsoft Learn, "Chaining Service Bus entities with autoforwarding": not supported; refused with 40000.
            self.fault(
                alias,
                f"{what} requires sessions, and such an entity cannot forward to {entity.forward_to}",
                f"forward from an entity without sessions, or {_made_again(kind)}",
            )
            return False
        return True

    def note_forwarding(self, alias: str, what: str, entity: _Receiver, existing: _Receiver) -> None:
        """Note new or different forwarding of an application's entity."""
        for name, of in (("forward_to", "messages"), ("forward_dead_letters_to", "dead-lettered messages")):
            new, old = getattr(entity, name), getattr(existing, name)
            if new is None or (new or "").lower() == (old or "").lower():
                continue
            where = f"be forwarded to {new}" if new else "stay there"
            before = f"; until now they were forwarded to {old}" if old else ""
            reads = (
                ", and no application can receive from it any more" if name == "forward_to" and new and not old else ""
            )
            self.notes.append(f"{of} of {what} at {alias} will {where}{reads}{before}")

    def note_former(self, namespace: NamespaceState, what: str, entity: _Receiver, existing: _Receiver | None) -> None:
        """Note an entity that starts forwarding to an existing entity of a task: another entity may still forward there."""
        if entity.name.lower().startswith(OWN):
            if existing is None:
                self._note_mailbox(namespace, what, entity.forward_to or "")
            return
        for name in ("forward_to", "forward_dead_letters_to"):
            target = getattr(entity, name) or ""
            is_new = existing is None or (getattr(existing, name) or "").lower() != target.lower()
            if is_new and target.lower().startswith(OWN) and (namespace.topic(target) or namespace.queue(target)):
                self.notes.append(
                    f"{target} at {namespace.alias} exists, and {what} did not forward to it: the entity that the task named "
                    "before continues to forward "
                    "there, and its messages are treated as this one's; apply --prune lists it, and ends it with --yes"
                )

    def _note_mailbox(self, namespace: NamespaceState, what: str, target: str) -> None:
        """Note a replication subscription that is created before an existing mailbox: that may belong to another topic."""
        if target.lower().startswith(OWN) and namespace.queue(target):
            self.notes.append(
                f"queue {target} at {namespace.alias} exists, and {what} did not forward to it: if the task named another "
                "topic before, the messages "
                "in it are of that topic, and its subscription forwards more; all are moved as if they came from this topic. Let the former "
                "file's run move them first; apply --prune lists that subscription, and deletes it with --yes"
            )

    def end_forwarding(
        self, alias: str, what: str, entity: _Receiver, existing: _Receiver, change: Change
    ) -> _Receiver:
        """Add the end of forwarding from an application's entity to a task of the file that no longer declares it: the task had another pattern. This
        change precedes all others, since messages forwarded meanwhile would be treated as the new pattern's.

        Args:
            alias: alias of the namespace.
            what: the entity, for people.
            entity: the wanted entity.
            existing: the existing entity.
            change: an update of it, without a state.

        Returns:
            The entity after that change.
        """
        tasks = {name.lower() for name in self.federation.tasks}
        ended = {
            name: ""
            for name in ("forward_to", "forward_dead_letters_to")
            if getattr(entity, name) is None and _task_of(getattr(existing, name) or "") in tasks
        }
        if not ended or entity.name.lower().startswith(OWN):
            return existing
        after = replace(type(entity)(name=entity.name), **ended)  # type: ignore[arg-type]
        why = "since its task no longer declares it"
        self.changes.append(replace(change, after=after, before=existing, why=why))
        self.note_forwarding(alias, what, after, existing)
        self.note_left(alias, after, existing)
        return replace(existing, **ended)  # type: ignore[arg-type]

    def note_kept(self, alias: str, what: str, entity: _Receiver, existing: _Receiver) -> None:
        """Note forwarding of an application's entity to one of isthmus's own entities that the file no longer declares."""
        if entity.name.lower().startswith(OWN):
            return
        for name, of in (("forward_to", "messages"), ("forward_dead_letters_to", "dead-lettered messages")):
            target = getattr(existing, name) or ""
            if getattr(entity, name) is None and target.lower().startswith(OWN):
                self.notes.append(
                    f"{of} of {what} at {alias} are still forwarded to {target}, which no task of this file declares; unless "
                    "another file does, end it "
                    "with isthmus apply --prune if the task in its name is in the file, else with isthmus remove"
                )

    def note_left(self, alias: str, entity: _Receiver, existing: _Receiver) -> None:
        """Note a former forwarding target of another entity: one of isthmus's own, whose messages no route reads, or a former parking queue."""
        for name in ("forward_to", "forward_dead_letters_to"):
            old, new = getattr(existing, name) or "", getattr(entity, name)
            if not old or new is None or new.lower() == old.lower():
                continue
            if old.lower().startswith(OWN):
                self.notes.append(
                    f"messages in {old} at {alias} are no longer moved by any task of this file: before apply, run the former "
                    "file until none "
                    "are left"
                )
            elif entity.name.lower().startswith(OWN) and name == "forward_to":
                self.notes.append(
                    f"messages parked in {old} at {alias} stay there, and redrive --parked reads only {new}: use the former "
                    "file to send them again"
                )


def _task_of(name: str) -> str:
    """The task of an entity, in lower case; empty if it is none of isthmus's own."""
    folded = name.lower()
    return folded[len(OWN) :].partition(".")[0] if folded.startswith(OWN) else ""


def _made_again(kind: str) -> str:
    """The operator's action if only a new creation helps."""
    return (
        f"delete the {kind} when it is drained and nothing is sent to it; apply creates it again, without the messages that were in it or "
        "arrived meanwhile"
    )


def settled(entity: _Receiver) -> _Receiver:
    """The entity as the service stores it: one that forwards is never deleted when idle."""
    if entity.forward_to and entity.auto_delete_on_idle_ms is not None:
        return replace(entity, auto_delete_on_idle_ms=INFINITE_MS)
    return entity


def fitted(entity: _Entity, endpoint: str) -> _Entity:
    """The wanted state of an entity at the namespace that answered from an endpoint."""
    if entity.keyless_detection_ms is None:
        return entity
    detection_ms = entity.duplicate_detection_ms if keeps_keys(endpoint) else entity.keyless_detection_ms
    return replace(entity, duplicate_detection_ms=detection_ms, keyless_detection_ms=None)
