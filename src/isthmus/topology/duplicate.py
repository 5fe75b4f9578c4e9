"""The treatment of a copy that is sent again, as notes for `lint` and `plan`.

What it is: which namespaces keep duplicate keys, as far as their host names show, and the notes on a task. What it is
not: the decision of a route, which queries its target (`isthmus.message.duplicate_key`).
See docs/explanation/guarantees.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from isthmus.topology.model import Federation, NamespaceRef, Task

__all__ = ["duplicate_notes", "federation_notes", "keeps_keys"]

_AZURE = (
    ".servicebus.windows.net",
    ".servicebus.chinacloudapi.cn",
    ".servicebus.usgovcloudapi.net",
    ".servicebus.cloudapi.de",
)


def keeps_keys(endpoint: str) -> bool:
    """Whether the namespace at `host[:port]` is assumed to keep duplicate keys: all but Azure's."""
    return not endpoint.lower().partition(":")[0].endswith(_AZURE)


def duplicate_notes(task: Task, keyless: Sequence[str]) -> Iterator[str]:
    """Notes on the task's `duplicates` for the operator.

    Args:
        task: the task.
        keyless: aliases of its members, and of the namespaces that its steps divert to, that keep no duplicate keys.
    """
    duplicates = getattr(task, "duplicates", "")
    where = ", ".join(keyless)
    if duplicates == "allow":
        yield f"task {task.name}: a copy that is sent again after a crash appears twice (duplicates: allow)"
    elif duplicates == "message-id":
        yield (
            f"task {task.name}: a message with the MessageId of an earlier one is dropped at every member (duplicates: message-id); "
            "publishers with equal MessageIds lose messages"
        )
    elif duplicates == "origin" and keyless:
        yield (
            f"task {task.name}: at {where} a copy's MessageId is derived from its origin, and the sender's own is in the "
            "property repl-message-id (duplicates: origin)"
        )
    elif duplicates == "auto" and keyless:
        yield (
            f"task {task.name}: at {where} a copy that is sent again after a crash appears twice; write duplicates: origin "
            "or duplicates: message-id to have it dropped"
        )


def federation_notes(federation: Federation) -> Iterator[str]:
    """The notes on all tasks, as far as the file alone shows where its namespaces are."""
    for task in federation.tasks.values():
        yield from duplicate_notes(task, [alias for alias in task.sent_to if _is_keyless(federation.namespaces[alias])])


def _is_keyless(namespace: NamespaceRef) -> bool:
    return bool(namespace.host) and not keeps_keys(namespace.host)
