"""What a pattern is to the rest of topology.

What it is: the protocol that each pattern's module fulfils, and the settings that tasks of every pattern share. What it
is not: any pattern.
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
        description="Which messages a new route begins with. `now`: those sent after `apply` made what it reads; `existing`: all that are there then, "
        "too. A log honours both. What a route empties it has from the beginning, and a subscription that `apply` makes on a topic has nothing from "
        "before: where it is written otherwise, lint says so ([where a task begins](../how-to/choose-where-a-task-begins.md)).",
        example="now",
    ),
    Setting(
        name="ordering",
        kind=Kind.CHOICE,
        choices=("ordered", "session", "strict", "none"),
        default="ordered",
        description="`ordered` keeps the order of the source, also across crashes. `session` reads an entity that requires sessions, and keeps "
        "SessionId and the order within each session. `strict` is `ordered` also where the target refuses messages: one delivery, of as "
        "many messages as an envelope takes, is under way at a time. `none` is the fastest.",
        example="ordered",
    ),
    Setting(
        name="refused",
        kind=Kind.CHOICE,
        choices=("dead-letter", "block"),
        default="dead-letter",
        description="A message that its target goes on refusing for 10 s while it accepts others, or that is too large or "
        "malformed. `dead-letter`: at its source, with the reason `RefusedByTarget`; `block`: the route waits until the target "
        "takes it. A target that is busy, full or disabled always blocks.",
        example="dead-letter",
    ),
    Setting(
        name="steps",
        kind=Kind.STEPS,
        description="What messages go through on each route of the task, in order: a list of steps, each a mapping with one key.",
        example="[{filter: \"carrier = 'UA'\"}]",
    ),
    RATE,
    LEDGER,
    Setting(
        name="canary",
        kind=Kind.DURATION,
        minimum=1_000,
        maximum=3_600_000,
        description="How often each route of the task gets a heartbeat message of isthmus's own, whose way to the target `isthmus status` "
        "times. Applications do not receive it: the subscriptions that the task declares get the rule `[isthmus-canary] IS NULL`. Only "
        "between topics. Without it there is none.",
        example="30s",
    ),
)

COMMON_PLANNED = (
    Setting(
        name="mailbox",
        kind=Kind.BOOLEAN,
        default=False,
        description="Whether each replication subscription forwards to a queue of its own, of the same name, from which the route reads: what waits for a "
        "target that is away then fills that queue, and not the topic.",
        example="true",
    ),
    Setting(
        name="when_full",
        kind=Kind.CHOICE,
        choices=("alert", "spool", "drop"),
        default="alert",
        description="What is done so that a backlog does not fill the source. `alert`: `isthmus status` forecasts it, and `run` warns; `spool`: the routes "
        "read through a spool on the disk of the machine that runs them, always, so that nothing waits at the source; `drop`, with `mailbox`: "
        "when a mailbox is 90 % full, `run` deletes its oldest messages until it is 80 % full, and counts them.",
        example="spool",
    ),
    Setting(
        name="session_state",
        kind=Kind.CHOICE,
        choices=("none", "copy"),
        default="none",
        description="With `ordering: session`, from a queue or an application's subscription to a queue, both of Service Bus: what becomes of the "
        "state of a session. `none`: it stays where it is; `copy`: it is set at the target behind the messages that the route took of the session "
        "([what that promises](../how-to/keep-the-order-of-sessions.md#the-state-of-a-session)).",
        example="copy",
    ),
    Setting(
        name="compression",
        kind=Kind.CHOICE,
        choices=("none", "deflate"),
        default="none",
        description="How the routes send to namespaces of isthmus. `none`: each message as it is; `deflate`: in deflated envelopes, for a long "
        "way. What routes read is not compressed: run them where the source is.",
        example="deflate",
    ),
    Setting(
        name="hop_budget",
        kind=Kind.INTEGER,
        default=HOP_BUDGET,
        minimum=1,
        maximum=64,
        description="How many copies of copies a message may become, over all tasks whose routes it goes through; at a route beyond that it "
        "is dead-lettered at its source with the reason `HopBudgetUsedUp`.",
        example="3",
    ),
)
"""Behind the settings of a pattern: what tasks of every pattern take."""


class Pattern(Protocol):
    """One way of moving messages between namespaces, as far as topology is concerned."""

    spec: Spec

    def build(self, name: str, values: Values, document: Document) -> Task | None:
        """The task of these values; faults that need only the task itself go to the document.

        Returns:
            None where so much is at fault that nothing more can be checked.
        """
        ...

    def named(self, task: Any, namespaces: Mapping[str, NamespaceRef]) -> Task:
        """The task with the names that depend on where its members are."""
        ...

    def check(self, task: Any, federation: Federation, document: Document) -> None:
        """Fault what is wrong between the task and the rest of the federation."""
        ...

    def wanted(self, task: Any) -> Iterator[tuple[str, WantedState]]:
        """What must exist: alias of the namespace and a queue, or a topic with its subscriptions and rules."""
        ...

    def routes(self, task: Any) -> Iterator[Route]:
        """The routes that the task compiles to."""
        ...

    def audit(self, task: Any) -> Iterator[Flow]:
        """What `isthmus verify` compares: each entity that messages enter, with each where they have to be."""
        ...
