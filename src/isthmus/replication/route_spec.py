"""The specification of a route for the processes that carry it.

What it is: a pure mapping from the topology's route to the bridge's specification of a route. What it is not: the query that
carries it (`isthmus.replication.query.shared_run`), nor the options' meaning, which the connectors declare.

Invariants:
    I1. Options contain references to secrets, never secrets.
    I2. A route's claim is that of its task at the namespace where the route is claimed; no two such pairs have the same key.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from isthmus.bridge.route_spec import TARGET_SECONDS, End, RouteSpec
from isthmus.connectors.spool.option import numbering_of
from isthmus.message.copy_policy import CopyPolicy
from isthmus.message.provenance import HOP_BUDGET
from isthmus.replication.namespace_clients import namespace_options
from isthmus.topology.model import TABLE, Endpoint, Federation, LogOptions, PlainOptions, Route
from isthmus.topology.pattern.ordering import SESSIONS_AT_ONCE
from isthmus.topology.step.divert import DivertTo

__all__ = ["SESSION_STATES", "claim_key", "route_spec"]

SESSION_STATES = "session-states"
"""Folder in the state folder, with a file for each route that copies the state of sessions."""

DEFLATED_MESSAGES = 200
"""Messages in an envelope: alone, one keeps two thirds of its bytes, among similar ones a sixth (docs/adr/0030-deflated-envelopes.md)."""


_ANSWER_SECONDS = 5.0


def claim_key(task: str, alias: str) -> str:
    """The key of a task's claim at a namespace; an alias contains no `/`."""
    return f"{alias}/{task}"


def route_spec(
    route: Route, federation: Federation, *, only_present: bool = False, state_folder: Path | None = None
) -> RouteSpec:
    """Describe a route.

    Args:
        route: the route.
        federation: its federation, with absolute paths.
        only_present: end after moving the messages that the source had at the start.
        state_folder: state folder of the run; None: session states are not copied.
    """
    source = federation.namespaces[route.source.alias]
    read = _log_source if source.is_log else _plain_source if source.is_plain else _source
    options = route.options
    end_options = namespace_options(source) | read(route)
    if options.session_state == "copy" and state_folder is not None:
        end_options |= _session_states(route, federation, state_folder)
    target = _spool(route, source.kind) if route.target.is_table else _end(route, federation)
    diverts = {each.name: _divert(route, each, federation) for each in options.diverts}
    return RouteSpec(
        name=route.name,
        source=End(source.kind, source.alias, end_options),
        target=target,
        claim=claim_key(route.task, route.claim_alias) if route.is_claimed else "",
        ordered=options.ordering != "none",
        is_strict=options.ordering == "strict",
        # A log's partitions are assigned to the members of its group, and a route is one member; messages at the start are counted by one reader.
        competing=not (source.is_log or only_present),
        only_present=only_present,
        block_refused=options.refused == "block",
        target_seconds=max(_target_seconds(each) for each in (target, *diverts.values())),
        envelope_messages=DEFLATED_MESSAGES if options.compression == "deflate" else 0,
        rate=options.rate,
        steps=options.steps,
        diverts=diverts,
        diverted_from=f"{route.source.alias}/{route.source.entity}" if options.diverts else "",
    )


def _target_seconds(target: End) -> float:
    """How long a target may give no outcome: a little longer than its own limit, after which it is lost by itself, where the file sets one for its
    requests. Without this, a message whose request may take longer is sent again each time before the answer.
    """
    # A system that receives requests is lost after twice the limit of one.
    return max(TARGET_SECONDS, 2 * float(target.options.get("timeout_seconds", 0.0)) + _ANSWER_SECONDS)


def _divert(route: Route, divert: DivertTo, federation: Federation) -> End:
    """The end of an entity to which steps divert. It gets messages as received: neither the mark nor the policy of the route changes them; a
    message that has been there before, and that its provenance would stop, is dead-lettered at its source.
    """
    options = replace(
        route.options,
        mark="",
        policy=CopyPolicy(dead_letters_returning=True),
        log=LogOptions(partitioning=route.options.log.partitioning),
        plain=PlainOptions(writes_topic=divert.is_topic),
        steps=(),
        table=None,
    )
    return _end(replace(route, targets=(Endpoint(divert.alias, divert.entity),), options=options), federation)


def _end(route: Route, federation: Federation) -> End:
    target = federation.namespaces[route.target.alias]
    write = _log_target if target.is_log else _plain_target if target.is_plain else _target
    end_options = namespace_options(target) | write(route, has_steps=bool(route.options.steps))
    return End(target.kind, target.alias, end_options)


def _spool(route: Route, kind: str) -> End:
    """The spool before a table; `kind` is the source's kind."""
    assert route.options.table is not None
    source = f"{route.source.alias}/{route.source.entity}"
    end_options = {"path": route.options.table.spool, "source": source, "made": "true"}
    return End("spool", TABLE, end_options | numbering_of(kind))


def _source(route: Route) -> dict[str, str]:
    options = route.options
    found = {"entity": route.source.entity, "lock_seconds": str(options.lock_duration_ms / 1000)}
    return found | ({"sessions": str(SESSIONS_AT_ONCE)} if options.ordering == "session" else {})


def _session_states(route: Route, federation: Federation, state_folder: Path) -> dict[str, str]:
    """The target of session states, and the file that records the copied ones."""
    target = namespace_options(federation.namespaces[route.target.alias])
    file = state_folder.absolute() / SESSION_STATES / f"{route.name}.jsonl"
    end_options = {f"state_{name}": value for name, value in target.items()}
    return end_options | {"state_entity": route.target.entity, "state_file": str(file)}


def _log_source(route: Route) -> dict[str, str]:
    """A static member: a route that takes over gets the partitions immediately, and fences the previous owner. Not if nothing prevents two
    concurrent runs: they would fence each other for ever; without it they share the partitions.
    """
    options = route.options.log
    found = {
        "topic": route.source.entity,
        "group": options.group,
        "member": route.name if route.is_claimed else "",
        "message_ids": "offset",
        "keyless": "partition" if options.keys_by_partition else "none",
    }
    return found | ({"dead_letter_topic": options.dead_letters} if options.dead_letters else {})


def _plain_source(route: Route) -> dict[str, str]:
    options = route.options.plain
    found = {"entity": route.source.entity, "entity_type": "topic" if options.reads_topic else "queue"}
    if options.subscription:
        found["subscription"] = options.subscription
    return found | ({"dead_letters": options.dead_letters} if options.dead_letters else {})


def _plain_target(route: Route, *, has_steps: bool) -> dict[str, str]:
    end_options = {
        "entity": route.target.entity,
        "entity_type": "topic" if route.options.plain.writes_topic else "queue",
        "duplicates": route.options.duplicates,
    }
    return end_options | _copies(route, has_steps=has_steps)


def _target(route: Route, *, has_steps: bool) -> dict[str, str]:
    options = route.options
    end_options = {
        "entity": route.target.entity,
        "duplicates": options.duplicates,
        **_copies(route, has_steps=has_steps),
    }
    return end_options | ({"compression": options.compression} if options.compression != "none" else {})


def _log_target(route: Route, *, has_steps: bool) -> dict[str, str]:
    copies = _copies(route, has_steps=has_steps)
    return {"topic": route.target.entity, "partitioning": route.options.log.partitioning, **copies}


def _copies(route: Route, *, has_steps: bool) -> dict[str, str]:
    """The options for the copies at a target of any kind."""
    policy = route.options.policy.to_text()
    found = {
        "origin": f"{route.source.alias}/{route.entered}",
        "target": route.target.alias,
        "mark": route.options.mark,
        "mark_value": "number" if route.options.mark_is_number else "message-id",
        "trusts_provenance": "true" if has_steps else "false",
    }
    if route.options.hop_budget != HOP_BUDGET:
        found["hop_budget"] = str(route.options.hop_budget)
    return found | ({"policy": policy} if policy else {})
