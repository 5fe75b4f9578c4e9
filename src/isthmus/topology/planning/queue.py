"""The comparison of a wanted queue with the existing one."""

from __future__ import annotations

from dataclasses import replace

from isthmus.topology.planning.change import Change, differences
from isthmus.topology.planning.finding import Findings, fitted, settled
from isthmus.topology.state import NamespaceState, QueueState

__all__ = ["plan_queue"]


def plan_queue(findings: Findings, namespace: NamespaceState, queue: QueueState) -> None:
    """Add the changes that make the queue: its creation, or one update of the declared fields that differ."""
    alias, existing = namespace.alias, namespace.queue(queue.name)
    what = f"queue {queue.name}"
    queue = settled(fitted(queue, namespace.endpoint))
    findings.note_former(namespace, what, queue, existing)
    if existing is None:
        if namespace.topic(queue.name):
            findings.fault(
                alias,
                f"there is a topic with the name of the queue {queue.name}",
                "write another name, or delete the topic once its subscriptions are drained",
            )
            return
        findings.changes.append(Change(alias=alias, action="create", kind="queue", topic=queue.name, after=queue))
        findings.note_created_detection(alias, what, queue)
        return
    update = Change(alias=alias, action="update", kind="queue", topic=queue.name)
    existing = findings.end_forwarding(alias, what, queue, existing, update)
    findings.note_kept(alias, what, queue, existing)
    sound = findings.check_receiver(alias, what, queue, existing)
    findings.check_partitioned(alias, what, queue, existing)
    if not findings.check_duplicates(alias, what, queue, existing):
        queue = replace(queue, duplicate_detection_ms=None)
    # Fixed at the creation of a queue, or only used for it.
    queue = replace(queue, requires_session=None, partitioned=None, initial_ttl_ms=None, initial_size_megabytes=None)
    if sound and any(True for _ in differences(existing, queue)):
        findings.changes.append(replace(update, after=queue, before=existing))
        findings.note_forwarding(alias, what, queue, existing)
        findings.note_left(alias, queue, existing)
