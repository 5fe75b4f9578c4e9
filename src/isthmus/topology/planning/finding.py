"""What planning finds: changes, notes and faults, gathered over all entities."""

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
"""What the names of all entities begin with that isthmus makes for itself."""

_Entity = TypeVar("_Entity", TopicState, QueueState)
_Receiver = TypeVar("_Receiver", QueueState, SubscriptionState)


@dataclass
class Findings:
    """All that planning a federation found.

    Attributes:
        federation: of the plan.
        changes: in the order in which they were found.
        notes: for the operator.
        faults: what no change can mend.
    """

    federation: Federation
    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def fault(self, alias: str, message: str, hint: str) -> None:
        """A fault at a namespace."""
        place = self.federation.namespaces[alias].place
        self.faults.append(Fault(f"namespace {alias}: {message}", hint, self.federation.file, place.line, place.column))

    def check_duplicates(self, alias: str, what: str, entity: _Entity, stands: _Entity) -> bool:
        """Note or fault duplicate detection that differs from what is wanted; whether its window is to change."""
        window_ms = entity.duplicate_detection_ms
        if window_ms == 0 and stands.duplicate_detection_ms:
            self.notes.append(
                f"{what} at {alias} has duplicate detection "
                f"({format_ms(stands.duplicate_detection_ms)}), which cannot be turned off: a message is dropped there "
                "when its MessageId came before; only copies that are known by their origin are not compared by it"
            )
        if window_ms and not stands.duplicate_detection_ms:
            self.fault(
                alias,
                f"{what} exists without duplicate detection, which cannot be turned on",
                f"write another value of duplicates in the task, or {_made_again(what.partition(' ')[0])}",
            )
        return bool(window_ms and stands.duplicate_detection_ms and window_ms != stands.duplicate_detection_ms)

    def note_created_detection(self, alias: str, what: str, entity: _Entity) -> None:
        """Note that an entity is created with duplicate detection."""
        if entity.duplicate_detection_ms:
            self.notes.append(
                f"duplicate detection will be on for {what} at {alias} "
                f"({format_ms(entity.duplicate_detection_ms)}): messages with equal MessageId are dropped within it, "
                "of one publisher and of several"
            )

    def check_partitioned(self, alias: str, what: str, entity: _Entity, stands: _Entity) -> None:
        """Fault partitioning that differs from what is wanted."""
        if entity.partitioned is False and stands.partitioned:
            self.fault(
                alias,
                f"{what} is partitioned and keeps no order, which cannot be changed",
                f"write ordering: none in the task, or {_made_again(what.partition(' ')[0])}",
            )
        if entity.partitioned and stands.partitioned is False:
            self.fault(
                alias,
                f"{what} is not partitioned, which cannot be changed",
                _made_again(what.partition(" ")[0]),
            )

    def check_receiver(self, alias: str, what: str, entity: _Receiver, stands: _Receiver) -> bool:
        """Fault sessions that differ from what is wanted, or that forwarding does not go with; whether all is well."""
        kind = what.partition(" ")[0]
        if entity.requires_session is not None and entity.requires_session != bool(stands.requires_session):
            does = "requires sessions" if stands.requires_session else "does not require sessions"
            self.fault(alias, f"{what} {does}, which cannot be changed", _made_again(kind))
            return False
        if entity.forward_to and stands.requires_session:
            # Microsoft Learn, "Chaining Service Bus entities with autoforwarding": not supported; refused with 40000.
            self.fault(
                alias,
                f"{what} requires sessions, and such an entity cannot forward to {entity.forward_to}",
                f"forward from an entity without sessions, or {_made_again(kind)}",
            )
            return False
        return True

    def note_forwarding(self, alias: str, what: str, entity: _Receiver, stands: _Receiver) -> None:
        """Note what an entity of an application's will forward that did not, or elsewhere."""
        for name, of in (("forward_to", "messages"), ("forward_dead_letters_to", "dead-lettered messages")):
            new, old = getattr(entity, name), getattr(stands, name)
            if new is None or (new or "").lower() == (old or "").lower():
                continue
            where = f"go on to {new}" if new else "stay there"
            before = f"; until now they went to {old}" if old else ""
            reads = ", and nobody can receive from it any more" if name == "forward_to" and new and not old else ""
            self.notes.append(f"{of} of {what} at {alias} will {where}{reads}{before}")

    def note_former(self, namespace: NamespaceState, what: str, entity: _Receiver, stands: _Receiver | None) -> None:
        """Note an entity that begins to forward to what a task has already: another one may forward there still."""
        if entity.name.lower().startswith(OWN):
            if stands is None:
                self._note_mailbox(namespace, what, entity.forward_to or "")
            return
        for name in ("forward_to", "forward_dead_letters_to"):
            target = getattr(entity, name) or ""
            is_new = stands is None or (getattr(stands, name) or "").lower() != target.lower()
            if is_new and target.lower().startswith(OWN) and (namespace.topic(target) or namespace.queue(target)):
                self.notes.append(
                    f"{target} at {namespace.alias} exists, and {what} did not forward to it: what the task named before goes on to forward "
                    "there, and is taken for this one's; apply --prune lists it, and ends it with --yes"
                )

    def _note_mailbox(self, namespace: NamespaceState, what: str, target: str) -> None:
        """Note a replication subscription that is made before a mailbox that exists: that may be another topic's."""
        if target.lower().startswith(OWN) and namespace.queue(target):
            self.notes.append(
                f"queue {target} at {namespace.alias} exists, and {what} did not forward to it: where the task named another topic before, what "
                "waits there is of that one, and its subscription forwards more; all of it is moved as if it came from this one. Let the former "
                "file's run move it first; apply --prune lists that subscription, and deletes it with --yes"
            )

    def end_forwarding(self, alias: str, what: str, entity: _Receiver, stands: _Receiver, change: Change) -> _Receiver:
        """Add the end of what an application's entity forwards to a task of the file that does not say so: it had another pattern. It comes before
        whatever else changes, or what is forwarded meanwhile would be taken for the new pattern's.

        Args:
            alias: the namespace's.
            what: the entity, for people.
            entity: as it is wanted.
            stands: as it is.
            change: an update of it, without a state.

        Returns:
            The entity as it is then.
        """
        tasks = {name.lower() for name in self.federation.tasks}
        ended = {
            name: ""
            for name in ("forward_to", "forward_dead_letters_to")
            if getattr(entity, name) is None and _task_of(getattr(stands, name) or "") in tasks
        }
        if not ended or entity.name.lower().startswith(OWN):
            return stands
        after = replace(type(entity)(name=entity.name), **ended)  # type: ignore[arg-type]
        why = "since its task says so no more"
        self.changes.append(replace(change, after=after, before=stands, why=why))
        self.note_forwarding(alias, what, after, stands)
        self.note_left(alias, after, stands)
        return replace(stands, **ended)  # type: ignore[arg-type]

    def note_kept(self, alias: str, what: str, entity: _Receiver, stands: _Receiver) -> None:
        """Note what an entity of an application's goes on to forward to one of isthmus's own though the file no longer says so."""
        if entity.name.lower().startswith(OWN):
            return
        for name, of in (("forward_to", "messages"), ("forward_dead_letters_to", "dead-lettered messages")):
            target = getattr(stands, name) or ""
            if getattr(entity, name) is None and target.lower().startswith(OWN):
                self.notes.append(
                    f"{of} of {what} at {alias} go on to {target}, which no task of this file says any more; unless another file does, end it "
                    "with isthmus apply --prune where the task that its name tells is in the file, else with isthmus remove"
                )

    def note_left(self, alias: str, entity: _Receiver, stands: _Receiver) -> None:
        """Note what another entity no longer forwards to: one of isthmus's own, whose messages no route reads, or where a task parked."""
        for name in ("forward_to", "forward_dead_letters_to"):
            old, new = getattr(stands, name) or "", getattr(entity, name)
            if not old or new is None or new.lower() == old.lower():
                continue
            if old.lower().startswith(OWN):
                self.notes.append(
                    f"what waits in {old} at {alias} is moved by no task of this file any more: before apply, run the former file until nothing "
                    "waits there"
                )
            elif entity.name.lower().startswith(OWN) and name == "forward_to":
                self.notes.append(
                    f"what is parked in {old} at {alias} stays there, and redrive --parked looks only into {new}: it takes the former "
                    "file to send that again"
                )


def _task_of(name: str) -> str:
    """The task that an entity is made for, in lower case; empty where it is none of isthmus's own."""
    folded = name.lower()
    return folded[len(OWN) :].partition(".")[0] if folded.startswith(OWN) else ""


def _made_again(kind: str) -> str:
    """What an operator can do where only a new creation helps."""
    return (
        f"delete the {kind} when it is drained and nothing is sent to it; apply creates it again, without the messages that were in it or "
        "came meanwhile"
    )


def settled(entity: _Receiver) -> _Receiver:
    """The entity as the service keeps it: one that forwards is never deleted when idle."""
    if entity.forward_to and entity.auto_delete_on_idle_ms is not None:
        return replace(entity, auto_delete_on_idle_ms=INFINITE_MS)
    return entity


def fitted(entity: _Entity, endpoint: str) -> _Entity:
    """What is wanted of an entity at the namespace that answered from an endpoint."""
    if entity.keyless_detection_ms is None:
        return entity
    detection_ms = entity.duplicate_detection_ms if keeps_keys(endpoint) else entity.keyless_detection_ms
    return replace(entity, duplicate_detection_ms=detection_ms, keyless_detection_ms=None)
