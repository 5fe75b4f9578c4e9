"""A queue that is wanted against what exists."""

from __future__ import annotations

from dataclasses import replace

from isthmus.topology.planning.change import Change, differences
from isthmus.topology.planning.finding import Findings, fitted, settled
from isthmus.topology.state import NamespaceState, QueueState

__all__ = ["plan_queue"]


def plan_queue(findings: Findings, namespace: NamespaceState, queue: QueueState) -> None:
    """Add what makes the queue: its creation, or one update of what the task declares and that differs."""
    alias, stands = namespace.alias, namespace.queue(queue.name)
    what = f"queue {queue.name}"
    queue = settled(fitted(queue, namespace.endpoint))
    findings.note_former(namespace, what, queue, stands)
    if stands is None:
        if namespace.topic(queue.name):
            findings.fault(
                alias,
                f"there is a topic where the queue {queue.name} should be",
                "write another name, or delete the topic once its subscriptions are drained",
            )
            return
        findings.changes.append(Change(alias=alias, action="create", kind="queue", topic=queue.name, after=queue))
        findings.note_created_detection(alias, what, queue)
        return
    update = Change(alias=alias, action="update", kind="queue", topic=queue.name)
    stands = findings.end_forwarding(alias, what, queue, stands, update)
    findings.note_kept(alias, what, queue, stands)
    sound = findings.check_receiver(alias, what, queue, stands)
    findings.check_partitioned(alias, what, queue, stands)
    if not findings.check_duplicates(alias, what, queue, stands):
        queue = replace(queue, duplicate_detection_ms=None)
    # Fixed when a queue is created, or only meant for its creation.
    queue = replace(queue, requires_session=None, partitioned=None, initial_ttl_ms=None, initial_size_megabytes=None)
    if sound and any(True for _ in differences(stands, queue)):
        findings.changes.append(replace(update, after=queue, before=stands))
        findings.note_forwarding(alias, what, queue, stands)
        findings.note_left(alias, queue, stands)
