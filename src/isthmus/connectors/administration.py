"""Entities of a federation's namespaces, observed and modified.

What it is: the protocol that each system's administration implements, and the operations over all namespaces of a federation:
observe all of them before any change, then make a plan's changes in order. What it is not: the decision what to change
(`isthmus.topology.planning.planner`) or one system's implementation (`isthmus.connectors.servicebus.administration.administration`).

Invariants:
    I1. Nothing is changed unless every namespace that a task uses has answered; all that did not are named at once.
    I2. Changes are made in the plan's order; the first that fails, or a request to stop, ends the work, and what was done, what failed and
        what was not begun are told apart. The plan's order is such that the work can be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

from isthmus.connectors.secret import scrub
from isthmus.connectors.system import system_of
from isthmus.errors import ConfigError, Fault, IsthmusError
from isthmus.topology import Change, Federation, NamespaceRef, NamespaceState, Plan, wanted
from isthmus.topology.planning.log_planner import wanted_logs
from isthmus.topology.planning.plain_planner import wanted_plain
from isthmus.topology.state import TopicState, WantedState

__all__ = [
    "Administration",
    "AdministrationError",
    "Administrations",
    "Applied",
    "EntityChangedError",
    "EntitySize",
    "Inventory",
    "NamespaceUnreachableError",
    "NamespacesAwayError",
    "open_administration",
]


class AdministrationError(IsthmusError):
    """A namespace's administration refused an operation, or cannot be reached."""

    code = "administration"

    def __init__(self, endpoint: str = "", reason: str = "", hint: str = "") -> None:
        super().__init__("", endpoint=endpoint, reason=scrub(reason), hint=hint)
        self.endpoint = endpoint
        self.reason = scrub(reason)
        self.hint = hint

    def text(self) -> str:
        return f"{self.endpoint}: {self.reason}" + (f"; {self.hint}" if self.hint else "")


class NamespaceUnreachableError(AdministrationError):
    """A namespace's administration did not answer; it may answer later."""

    code = "namespace-unreachable"
    retryable = True


class EntityChangedError(AdministrationError):
    """An entity has changed since its change was decided; nothing was changed."""

    code = "entity-changed"
    retryable = True


class NamespacesAwayError(ConfigError):
    """Namespaces did not answer, and there is no other fault: a retry may succeed later."""

    code = "namespaces-away"
    retryable = True


class EntitySize(NamedTuple):
    """The size of a queue or topic.

    Attributes:
        used_bytes: the size of its messages.
        limit_bytes: its maximum size.
        kind: `queue` or `topic`.
    """

    used_bytes: int
    limit_bytes: int
    kind: str = "topic"


class Administration(Protocol):
    """The entities of one namespace. Calls block."""

    def observe(self, alias: str, entities: Sequence[WantedState]) -> NamespaceState:
        """The entities of the given names, each a queue or a topic: a topic with all its subscriptions, the rules of the
        subscriptions that `entities` name, and all rules where the topic has canaries.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        ...

    def make(self, change: Change) -> None:
        """Make one change.

        Raises:
            EntityChangedError: the entity to update differs from what was observed.
            AdministrationError: no answer, or a refusal.
        """
        ...

    def size(self, entity: str) -> EntitySize | None:
        """The size of a queue or topic; None where neither exists.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        ...

    def close(self) -> None:
        """Close connections."""
        ...


@runtime_checkable
class Inventory(Protocol):
    """Optional queries of a namespace's administration, where its system supports them."""

    def inventory(self, alias: str) -> NamespaceState:
        """All queues, and all topics with their subscriptions, without rules.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        ...

    def waiting(self, change: Change) -> int:
        """The number of messages, dead-lettered ones included, in a queue, subscription or topic that a change would delete.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        ...


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of a plan's changes.

    Attributes:
        done: made, in order.
        failed: the one that was refused or got no answer; None if there was none.
        error: why.
        pending: not begun; without `failed` the work was stopped.
    """

    done: tuple[Change, ...] = ()
    failed: Change | None = None
    error: IsthmusError | None = None
    pending: tuple[Change, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether all changes were made."""
        return self.failed is None and not self.pending

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain values for `--json`."""
        return {
            "applied": [change.to_dict() for change in self.done],
            "failed": {**self.failed.to_dict(), "error": self.error.to_dict()} if self.failed and self.error else None,
            "pending": [change.to_dict() for change in self.pending],
        }


def open_administration(namespace: NamespaceRef) -> Administration:
    """Opens the administration of a namespace: resolves its secret; connects at the first call.

    Raises:
        SecretError, ConnectionStringError: its connection cannot be resolved.
        AdministrationError: the file of its authority does not exist.
    """
    if not namespace.is_service_bus:
        return system_of(namespace.kind).administration(namespace)
    from isthmus.connectors.servicebus.administration.administration import ServiceBusAdministration

    return ServiceBusAdministration.open(namespace)


class _Refused(NamedTuple):
    """Why a namespace could not be queried, and whether the cause is temporary."""

    fault: Fault
    may_pass: bool


class Administrations:
    """The administrations of all namespaces that a federation's tasks use.

    Args:
        federation: from `isthmus.topology.read`.
        opener: opens one namespace.
    """

    def __init__(
        self, federation: Federation, opener: Callable[[NamespaceRef], Administration] = open_administration
    ) -> None:
        self._federation = federation
        self._opener = opener
        self._wanted: dict[str, Sequence[Any]] = {
            **wanted(federation),
            **wanted_logs(federation),
            **wanted_plain(federation),
        }
        self._open: dict[str, Administration] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for administration in self._open.values():
            administration.close()
        self._open.clear()

    def observe(self) -> Mapping[str, NamespaceState]:
        """The state of every namespace; they are queried in parallel.

        Raises:
            NamespacesAwayError, ConfigError: with a fault for every namespace that cannot be opened or reached; the former where
                no namespace has a permanent fault.
        """
        return self._asked(self._wanted, lambda alias, opened: opened.observe(alias, self._wanted[alias]))

    def inventory(self) -> Mapping[str, NamespaceState]:
        """The entities of every namespace of the file, also of those that no task uses; systems without an inventory are omitted.

        Raises:
            ConfigError: as `observe`, and where two aliases are one namespace: an entity that a task wants at one of them would be
                reported as an orphan at the other.
        """
        inventories = self._asked(
            self._federation.namespaces,
            lambda alias, opened: opened.inventory(alias) if isinstance(opened, Inventory) else None,
        )
        faults = [
            self._fault(second.alias, f"{second.endpoint} is namespace {first.alias} too", "write one alias")
            for first, second in combinations(inventories.values(), 2)
            if first.is_same_namespace(second)
        ]
        if faults:
            raise ConfigError(faults)
        return inventories

    def waiting(self, change: Change) -> int:
        """The number of messages that a deletion would delete; call it after `inventory`.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        opened = self._open[change.alias]
        return opened.waiting(change) if isinstance(opened, Inventory) else 0

    def subscriptions(self, change: Change) -> tuple[str, ...]:
        """The subscriptions of the topic that a change refers to; call it after `inventory`.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        topic = self._open[change.alias].observe(change.alias, [TopicState(name=change.topic)]).topic(change.topic)
        return tuple(each.name for each in topic.subscriptions) if topic is not None else ()

    def _asked(
        self, asked: Iterable[str], ask: Callable[[str, Administration], NamespaceState | None]
    ) -> Mapping[str, NamespaceState]:
        aliases = list(asked)
        if not aliases:
            return {}
        with ThreadPoolExecutor(max_workers=len(aliases), thread_name_prefix="observe") as pool:
            answers = list(pool.map(lambda alias: self._ask(alias, ask), aliases))
        refused = [answer for answer in answers if isinstance(answer, _Refused)]
        if refused:
            faults = [each.fault for each in refused]
            raise NamespacesAwayError(faults) if all(each.may_pass for each in refused) else ConfigError(faults)
        return {answer.alias: answer for answer in answers if isinstance(answer, NamespaceState)}

    def _ask(
        self, alias: str, ask: Callable[[str, Administration], NamespaceState | None]
    ) -> NamespaceState | _Refused | None:
        namespace = self._federation.namespaces[alias]
        try:
            if alias not in self._open:
                self._open[alias] = self._opener(namespace)
            return ask(alias, self._open[alias])
        except IsthmusError as error:
            hint = getattr(error, "hint", "")
            message = str(error).removesuffix(f"; {hint}") if hint else str(error)
            return _Refused(self._fault(alias, message, hint), error.retryable)

    def _fault(self, alias: str, message: str, hint: str) -> Fault:
        place = self._federation.namespaces[alias].place
        return Fault(f"namespace {alias}: {message}", hint, self._federation.file, place.line, place.column)

    def apply(
        self,
        plan: Plan,
        on_change: Callable[[Change], None] = lambda change: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Applied:
        """Make a plan's changes; call it after `observe`.

        Args:
            plan: without faults.
            on_change: is told each change once it is made.
            is_stopped: asked before each change; once it says so none is begun any more.

        Raises:
            ConfigError: the plan has faults; nothing was changed.
        """
        if plan.faults:
            raise ConfigError(plan.faults)
        return self.make(plan.changes, on_change, is_stopped)

    def make(
        self,
        changes: Sequence[Change],
        on_change: Callable[[Change], None] = lambda change: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Applied:
        """Make changes in their order; call it after `observe` or `inventory`.

        Args:
            changes: what to make.
            on_change: is told each change once it is made.
            is_stopped: as for `apply`.
        """
        made = tuple(changes)
        for index, change in enumerate(made):
            if is_stopped():
                return Applied(made[:index], pending=made[index:])
            try:
                self._open[change.alias].make(change)
            except IsthmusError as error:
                return Applied(made[:index], change, error, made[index + 1 :])
            on_change(change)
        return Applied(made)
