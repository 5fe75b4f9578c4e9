"""The interface of a pattern to the rest of topology.

What it is: the protocol that each pattern's module fulfils, and the settings that tasks of every pattern share. What it
is not: a pattern.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from isthmus.message.provenance import HOP_BUDGET
from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.ledger import LEDGER
from isthmus.topology.model import Federation, Flow, NamespaceRef, Route, Task
from isthmus.topology.rate import RATE
from isthmus.topology.state import WantedState

__all__ = ["COMMON", "COMMON_PLANNED", "Pattern"]

COMMON = (
    Setting(
        name="start",
        kind=Kind.CHOICE,
        choices=("now", "existing"),
        default="now",
        description="The first messages of a new route. `now`: those sent after `apply` created its source; `existing`: also "
        "the existing ones. "
        "A log supports both. A source that is emptied is read from its beginning, and a subscription that `apply` creates on "
        "a topic has no earlier "
        "messages: lint reports other values ([where a task begins](../how-to/choose-where-a-task-begins.md)).",
        example="now",
    ),
    Setting(
        name="ordering",
        kind=Kind.CHOICE,
        choices=("ordered", "session", "strict", "none"),
        default="ordered",
        description="`ordered` keeps the order of the source, also across crashes. `session` reads an entity that requires sessions, and keeps "
        "SessionId and the order within each session. `strict` is `ordered` even if the target refuses messages: one delivery, of as "
        "many messages as fit into an envelope, is in flight at a time. `none` is the fastest.",
        example="ordered",
    ),
    Setting(
        name="refused",
        kind=Kind.CHOICE,
        choices=("dead-letter", "block"),
        default="dead-letter",
        description="Treatment of a message that its target refuses for 10 s while it accepts others, or that is too large or "
        "malformed. `dead-letter`: it is dead-lettered at its source, with the reason `RefusedByTarget`; `block`: the route "
        "waits until the target "
        "accepts it. A target that is busy, full or disabled always blocks.",
        example="dead-letter",
    ),
    Setting(
        name="steps",
        kind=Kind.STEPS,
        description="The steps that process the messages of each route of the task, in order: a list of mappings with one key each.",
        example="[{filter: \"carrier = 'UA'\"}]",
    ),
    RATE,
    LEDGER,
    Setting(
        name="canary",
        kind=Kind.DURATION,
        minimum=1_000,
        maximum=3_600_000,
        description="Interval at which isthmus sends a heartbeat message over each route of the task; `isthmus status` shows its latency. "
        "Applications do not receive it: the subscriptions that the task declares get the rule `[isthmus-canary] IS NULL`. Only "
        "between topics. Default: none.",
        example="30s",
    ),
)

COMMON_PLANNED = (
    Setting(
        name="mailbox",
        kind=Kind.BOOLEAN,
        default=False,
        description="Whether each replication subscription forwards to a mailbox, a queue of the same name, from which the "
        "route reads: messages "
        "that wait for an unavailable target then fill that queue, and not the topic.",
        example="true",
    ),
    Setting(
        name="when_full",
        kind=Kind.CHOICE,
        choices=("alert", "spool", "drop"),
        default="alert",
        description="The action against a backlog that would fill the source. `alert`: `isthmus status` forecasts it, and "
        "`run` warns; `spool`: "
        "the routes always read through a spool on the disk of the machine that runs them, so that no messages wait at the source; `drop`, "
        "with `mailbox`: when a mailbox is 90 % full, `run` deletes its oldest messages until it is 80 % full, and counts them.",
        example="spool",
    ),
    Setting(
        name="session_state",
        kind=Kind.CHOICE,
        choices=("none", "copy"),
        default="none",
        description="With `ordering: session`, from a queue or an application's subscription to a queue, both of Service Bus: "
        "the treatment of the "
        "state of a session. `none`: it stays at the source; `copy`: it is set at the target after the messages of the "
        "session that the route "
        "has moved ([guarantees](../how-to/keep-the-order-of-sessions.md#the-state-of-a-session)).",
        example="copy",
    ),
    Setting(
        name="compression",
        kind=Kind.CHOICE,
        choices=("none", "deflate"),
        default="none",
        description="Compression towards namespaces of isthmus. `none`: messages are sent unchanged; `deflate`: in deflated "
        "envelopes, for slow "
        "links. Reading from a source is not compressed: run the routes near the source.",
        example="deflate",
    ),
    Setting(
        name="hop_budget",
        kind=Kind.INTEGER,
        default=HOP_BUDGET,
        minimum=1,
        maximum=64,
        description="The largest number of successive copies of a message, over the routes of all tasks; at the next route it "
        "is dead-lettered at its source with the reason `HopBudgetUsedUp`.",
        example="3",
    ),
)
"""The settings of every pattern, after its own settings."""


class Pattern(Protocol):
    """One pattern of moving messages between namespaces, as topology uses it."""

    spec: Spec

    def build(self, name: str, values: Values, document: Document) -> Task | None:
        """The task of these values; faults of the task alone go to the document.

        Returns:
            None if there are so many faults that nothing more can be checked.
        """
        ...

    def named(self, task: Any, namespaces: Mapping[str, NamespaceRef]) -> Task:
        """The task with the names that depend on the addresses of its members."""
        ...

    def check(self, task: Any, federation: Federation, document: Document) -> None:
        """Fault conflicts between the task and the rest of the federation."""
        ...

    def wanted(self, task: Any) -> Iterator[tuple[str, WantedState]]:
        """The entities that must exist: alias of the namespace and a queue, or a topic with its subscriptions and rules."""
        ...

    def routes(self, task: Any) -> Iterator[Route]:
        """The routes of the task."""
        ...

    def audit(self, task: Any) -> Iterator[Flow]:
        """The comparisons of `isthmus verify`: each entity that messages enter, with each entity that they have to reach."""
        ...
