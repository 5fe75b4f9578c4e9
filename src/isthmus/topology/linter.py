"""The checks that report every fault of a federation file at once.

What it is: the checks across the parts of a file, after `isthmus.topology.file.reader` has read each part. What it is not:
checks that need an answer of a namespace (`isthmus.topology.planning.planner`).

Invariants:
    I1. For any text, `lint` returns; it never raises.
    I2. `read` raises if and only if `lint` has faults, with the same faults.
"""

from __future__ import annotations

from isthmus.errors import Fault
from isthmus.rules import Filter
from isthmus.rules.analysis.analysis import never_matches
from isthmus.rules.syntax.tree import And
from isthmus.topology.canary import check_canaries
from isthmus.topology.check.plain_password import check_passwords
from isthmus.topology.check.session_state import check_session_states
from isthmus.topology.check.start import check_start
from isthmus.topology.divert import check_diverts
from isthmus.topology.duplicate import keeps_keys
from isthmus.topology.file.document import Document
from isthmus.topology.file.reader import read_model
from isthmus.topology.graph.edge import cycle_faults
from isthmus.topology.graph.forwarding import hop_faults
from isthmus.topology.kind import KINDS
from isthmus.topology.mailbox import check_full
from isthmus.topology.model import Federation, NamespaceRef, Route, Task
from isthmus.topology.pattern import LOG_PATTERNS, PATTERNS, PLAIN_PATTERNS, TAKE_LOGS
from isthmus.topology.pattern.ordering import check_sessions
from isthmus.topology.planning.wanted import contradictions
from isthmus.topology.route import routes
from isthmus.topology.spark import control_warning, slots_needed, slots_warning
from isthmus.topology.step import may_set_aside, shuffles
from isthmus.topology.step.order import legs

__all__ = ["lint", "read", "warnings"]

# Duration of a micro-batch with state on two cores.
_BATCH_MS = 1_000


def lint(text: str, file: str = "isthmus.yaml") -> list[Fault]:
    """Every fault of a federation file, in the order of the file."""
    return list(_checked(text, file)[0].error().faults)


def warnings(text: str, file: str = "isthmus.yaml") -> list[Fault]:
    """What a federation file may contain but causes trouble later, in the order of the file."""
    return sorted(_checked(text, file)[0].warnings, key=lambda each: (each.line, each.column))


def read(text: str, file: str = "isthmus.yaml") -> Federation:
    """The federation that a file declares.

    Raises:
        ConfigError: with every fault of the file.
    """
    document, federation = _checked(text, file)
    if document.faults:
        raise document.error()
    return federation


def _checked(text: str, file: str) -> tuple[Document, Federation]:
    document, federation = read_model(text, file)
    _check_namespaces(federation, document)
    folded: dict[str, str] = {}
    for task in federation.tasks.values():
        if task.name.lower() in folded:
            document.fault(
                task.place,
                f"tasks {folded[task.name.lower()]} and {task.name} differ in case only",
                "Service Bus compares names without case: write another name",
            )
        folded.setdefault(task.name.lower(), task.name)
        _check_kinds(task, federation, document)
        PATTERNS[task.pattern].check(task, federation, document)
        check_diverts(task, federation, document)
        check_sessions(task, federation, document)
        check_start(task, document)
    if not document.faults:
        _check_taken(federation, document)
    if not document.faults:
        document.faults += contradictions(federation)
    if not document.faults:
        check_canaries(federation, document)
    if not document.faults:
        document.faults += hop_faults(federation)
    if not document.faults:
        document.faults += cycle_faults(federation)
    if not document.faults:
        spark = federation.spark
        found = routes(federation)
        _warn_of_two_paths(found, federation, document)
        _warn_of_steps(federation, document)
        _check_windows(federation, document)
        check_full(federation, document)
        check_session_states(federation, document)
        check_passwords(federation, document)
        _check_sending(federation, document)
        has_unordered = any(
            route.options.ordering == "none" and not federation.namespaces[route.source.alias].is_log for route in found
        )
        query_slots = spark.query_slots(has_unordered=has_unordered)
        parts = [legs(route.options.steps) for route in found]
        spooled = [
            bool(each.shuffle) or route.options.when_full == "spool" for each, route in zip(parts, found, strict=True)
        ]
        has_tables = any(spooled) or any(route.target.is_table for route in found)
        behind = {each.behind for each, has_spool in zip(parts, spooled, strict=True) if has_spool}
        queries = len({each.before for each in parts} | behind)
        carried = len(found) + sum(spooled)
        needed = slots_needed(carried, queries, query_slots, has_tables=has_tables)
        for warned in (slots_warning(spark, needed), control_warning(spark)):
            if warned is not None:
                document.warn(spark.place, *warned)
    return document, federation


def _check_sending(federation: Federation, document: Document) -> None:
    """Fault settings for copies if a task sends no copies, or if its targets do not support them."""
    for task in federation.tasks.values():
        targets = [
            federation.namespaces[each.target.alias]
            for each in PATTERNS[task.pattern].routes(task)
            if not each.target.is_table
        ]
        if "hop_budget" in task.places and not targets:
            document.fault(task.places["hop_budget"], f"task {task.name} makes no copies", "remove hop_budget")
        if task.compression != "none" and not any(each.is_service_bus and keeps_keys(each.host) for each in targets):
            document.fault(
                task.places.get("compression", task.place),
                f"task {task.name} sends to no namespace of isthmus, and other targets do not accept deflated envelopes",
                "remove compression",
            )


def _check_taken(federation: Federation, document: Document) -> None:
    """Fault two tasks, of any patterns, that consume from the same entity."""
    first: dict[tuple[str, ...], str] = {}
    for route in routes(federation):
        options = route.options
        is_service_bus = federation.namespaces[route.source.alias].is_service_bus
        # Only Service Bus compares names without case.
        entity = route.source.entity.lower() if is_service_bus else route.source.entity
        key = (route.source.alias, entity, options.log.group, options.plain.subscription)
        other = first.setdefault(key, route.task)
        if other != route.task:
            document.fault(
                federation.tasks[route.task].place,
                f"task {other} consumes from {route.source} already: each message would reach only one of the two tasks",
                "let publishers send to a topic, or write another group for a stream",
            )


def _check_kinds(task: Task, federation: Federation, document: Document) -> None:
    """Fault a namespace that is not Service Bus in a task whose pattern needs subscriptions and rules."""
    if task.pattern in (*LOG_PATTERNS, *TAKE_LOGS):
        return  # these patterns check their namespaces themselves
    for alias in task.members:
        namespace = federation.namespaces.get(alias)
        if namespace is not None and not namespace.is_service_bus:
            document.fault(
                task.places.get("members", task.place),
                f"{task.pattern} needs subscriptions with rules: {alias} is of kind {namespace.kind}, which has none",
                f"write a task of pattern {' or '.join(LOG_PATTERNS if namespace.is_log else PLAIN_PATTERNS)} for {alias}",
            )


def _warn_of_two_paths(found: list[Route], federation: Federation, document: Document) -> None:
    """Warn of two tasks that may both bring one message to one entity."""
    ends = [(each.source.alias, each.entered.lower(), each.target.alias, each.target.entity.lower()) for each in found]
    reported: set[tuple[str, str]] = set()
    for at, second in enumerate(found):
        for first in (each for other, each in enumerate(found[:at]) if ends[other] == ends[at]):
            filters = [Filter(each.options.filter).tree for each in (first, second) if each.options.filter]
            exclude = len(filters) == 2 and never_matches(And(tuple(filters)))
            if exclude or first.task == second.task or (first.task, second.task) in reported:
                continue
            reported.add((first.task, second.task))
            document.warn(
                federation.tasks[second.task].place,
                f"tasks {first.task} and {second.task} both bring messages of {second.source.alias}/{second.entered} to "
                f"{second.target}: of a "
                "message that both move, only the first copy is kept at targets that identify copies by origin, and both copies elsewhere",
                "write filters that exclude each other, or another target",
            )


def _warn_of_steps(federation: Federation, document: Document) -> None:
    """Warn of steps that set messages aside at a source that cannot keep them."""
    for task in federation.tasks.values():
        found = [route for route in routes(federation, task.name) if not _keeps_dead_letters(route, federation)]
        for step in filter(may_set_aside, task.steps if found else ()):
            source = found[0].source
            is_log = federation.namespaces[source.alias].is_log
            what = "is a log without a dead-letter queue" if is_log else "has no known queue for such a message"
            document.warn(
                step.place,
                f"step {step} dead-letters messages on which it fails, and {source} {what}: such a message blocks the route",
                f"write on_failure: drop in the step, or dead_letter_{'stream' if is_log else 'queue'}: NAME in the task",
            )


def _keeps_dead_letters(route: Route, federation: Federation) -> bool:
    namespace = federation.namespaces[route.source.alias]
    if namespace.is_log:
        return bool(route.options.log.dead_letters)
    return not namespace.is_plain or bool(route.options.plain.dead_letters) or namespace.keeps_rejected


def _check_windows(federation: Federation, document: Document) -> None:
    """Fault steps that process several messages together where they are impossible, and warn of their costs."""
    for task in federation.tasks.values():
        for step in filter(shuffles, task.steps):
            if task.pattern == "archive":
                document.fault(
                    step.place,
                    f"a task of pattern archive stores each message once, and cannot have the step {step}",
                    "write a task of another pattern with this step, and archive what it sends to",
                )
                continue
            if step.kind == "aggregate" and task.canary_ms:
                document.fault(
                    task.places.get("canary", task.place),
                    "a canary does not pass the step aggregate, which sends results instead of messages",
                    "remove canary",
                )
            written = step.settings.get("spool")
            where = f"in {written}" if written else "in spools in the state folder of the run"
            interval = int(step.settings["interval"])
            late = f"about {(interval + _BATCH_MS) / 1000:g} s after their arrival"
            if step.kind == "aggregate":
                late = f"{_seconds(step.settings['wait'])} or more after its window has ended"
            document.warn(
                step.place,
                f"step {step} reads through a spool {where}, which contains messages that are settled at their source; its output is sent "
                f"{late}",
                "keep that folder and the checkpoint of the task: they are data",
            )
            if federation.spark.is_remote and not written:
                document.fault(
                    step.place,
                    f"step {step} keeps messages in the state folder, which executors on other machines cannot access",
                    "write spool: with a folder that all of them share",
                )


def _seconds(ms: int) -> str:
    return f"{int(ms) / 1000:g} s"


def _check_namespaces(federation: Federation, document: Document) -> None:
    first: dict[str, NamespaceRef] = {}
    folded: dict[str, str] = {}
    for namespace in federation.namespaces.values():
        where = str(namespace.connection) if namespace.connection else namespace.host.removesuffix(":5671")
        settings = dict(namespace.settings)
        address = "/".join(settings[name] for name in KINDS[namespace.kind].address.split() if settings.get(name))
        where = where or (f"{namespace.kind}:{address}" if address else "")
        if where and where in first:
            document.fault(
                namespace.place,
                f"namespaces {first[where].alias} and {namespace.alias} are the same namespace",
                "write one alias, or another connection",
            )
        first.setdefault(where, namespace)
        if namespace.alias.lower() in folded:
            document.fault(
                namespace.place,
                f"aliases {folded[namespace.alias.lower()]} and {namespace.alias} differ in case only",
                "Service Bus compares names without case: write another alias",
            )
        folded.setdefault(namespace.alias.lower(), namespace.alias)
