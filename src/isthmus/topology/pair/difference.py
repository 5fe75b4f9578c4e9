"""What has to change at one member of a pair so that it holds what the other one holds.

What it is: two snapshots in, steps out, in groups. What it is not: the making of them.

Invariants:
    I1. The steps of one group are independent of each other; a group is made after all those before it.
    I2. What is forwarded to is created before what forwards, and deleted after it. In a ring of forwarding one entity is
        created without its target, which it gets by an update.
    I3. Only what pairing made is deleted, unless the operator consents.
    I4. A setting that cannot change while an entity exists is a conflict; if pairing made the entity, it is replaced.
    I5. The steps lead to a snapshot that has no difference (but conflicts and what is foreign).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from isthmus.topology.pair.description import AccessRule, Description, Key, Snapshot, label, shown

__all__ = ["IMMUTABLE", "Conflict", "Drift", "Step", "difference", "unlike"]

IMMUTABLE = frozenset({"requires_session", "requires_duplicate_detection", "enable_partitioning"})
_FORWARDING = ("forward_to", "forward_dead_lettered_messages_to")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change of one entity.

    Attributes:
        action: what is done.
        after: what exists afterwards; None after a deletion.
        before: what existed; None before a creation.
        changed: names of the settings that an update changes.
        rules: of a subscription that is created, its rules.
    """

    action: Literal["create", "update", "delete"]
    after: Description | None = None
    before: Description | None = None
    changed: tuple[str, ...] = ()
    rules: tuple[Description, ...] = ()

    @property
    def entity(self) -> Description:
        """What it is about."""
        entity = self.after or self.before
        assert entity is not None
        return entity

    @property
    def details(self) -> tuple[str, ...]:
        """Each setting that changes, for people; keys are never shown."""
        if self.action == "update" and self.after is not None and self.before is not None:
            return tuple(_changes(self.before, self.after, self.changed))
        return tuple(f"rule {rule.names[-1]}" for rule in self.rules)

    def __str__(self) -> str:
        sign = {"create": "+", "update": "~", "delete": "-"}[self.action]
        details = "; ".join(self.details)
        return f"{sign} {self.entity.kind} {self.entity.path}" + (f": {details}" if details else "")


class Conflict(NamedTuple):
    """What pairing does not change by itself."""

    path: str
    reason: str
    hint: str

    def __str__(self) -> str:
        return f"! {self.path}: {self.reason}; {self.hint}"


@dataclass(frozen=True, slots=True)
class Drift:
    """How far two members are apart.

    Attributes:
        groups: of steps, in order.
        conflicts: what the steps leave apart.
        foreign: what only the standby member holds and pairing did not make.
    """

    groups: tuple[tuple[Step, ...], ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    foreign: tuple[Description, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, in order."""
        return tuple(step for group in self.groups for step in group)

    @property
    def is_none(self) -> bool:
        """Whether the members are in step."""
        return not self.groups and not self.conflicts


def unlike(wanted: Description, standing: Description) -> tuple[str, ...]:
    """Names of the settings that differ; one that either side does not tell is passed over."""
    return tuple(
        name
        for name, value in wanted.settings.items()
        if value is not None and (found := standing.settings.get(name)) is not None and not _same(name, found, value)
    )


def _same(name: str, found: object, value: object) -> bool:
    if name in _FORWARDING:
        return str(found).lower() == str(value).lower()
    return found == value


def difference(
    wanted: Snapshot, standing: Snapshot, *, made: Collection[Key] = (), may_delete_foreign: bool = False
) -> Drift:
    """The steps from what exists to what is wanted.

    Args:
        wanted: what the active member holds.
        standing: what the standby member holds.
        made: keys of what pairing made at the standby member.
        may_delete_foreign: whether the operator consents to the deletion of what pairing did not make.
    """
    gone = {key for key in standing if key not in wanted}
    own = {key for key in gone if may_delete_foreign or key in made or _is_rule_of_paired(key, wanted)}
    alien = {key for key in gone - own if len(key) < _RULE}
    replaced, conflicts = _irreconcilable(wanted, standing, made, alien)
    left = tuple(conflicts)
    fresh = [key for key in wanted if (key not in standing or _is_within(key, replaced)) and not _is_within(key, left)]
    stand = [key for key in wanted if key in standing and not _is_within(key, replaced) and not _is_within(key, left)]
    removed = {
        key
        for key in own
        if not _is_within(key, replaced) and not _is_within(key, left) and not any(_within(each, key) for each in alien)
    }
    foreign = tuple(
        standing[key] for key in sorted(gone - removed) if len(key) < _RULE and not _is_within(key, (*replaced, *left))
    )
    creations, completed = _creations(wanted, fresh)
    groups = [
        # What is replaced goes first; whatever else is deleted goes last, when no creation can fail any more.
        *_deletions(standing, replaced),
        *creations,
        *_updates(wanted, standing, stand),
        completed,
        *_rules(wanted, standing, fresh, stand, [key for key in sorted(removed) if len(key) == _RULE]),
        *_deletions(standing, [key for key in sorted(removed) if len(key) < _RULE]),
    ]
    return Drift(tuple(tuple(group) for group in groups if group), tuple(conflicts.values()), foreign)


_ENTITY, _SUBSCRIPTION, _RULE = 1, 2, 3


def _within(key: Key, other: Key) -> bool:
    return key[: len(other)] == other


def _is_within(key: Key, others: Collection[Key]) -> bool:
    """Whether it, or something that it belongs to, is among others."""
    return any(key[:length] in others for length in range(1, len(key) + 1))


def _is_rule_of_paired(key: Key, wanted: Snapshot) -> bool:
    """Rules belong to their subscription: one that the active member's subscription lacks goes."""
    return len(key) == _RULE and key[:_SUBSCRIPTION] in wanted


def _irreconcilable(
    wanted: Snapshot, standing: Snapshot, made: Collection[Key], alien: Collection[Key]
) -> tuple[list[Key], dict[Key, Conflict]]:
    """Entities that only a new creation could bring in step: those that pairing replaces, and the others."""
    replaced: list[Key] = []
    conflicts: dict[Key, Conflict] = {}
    for key, each in wanted.items():
        found = standing.get(key)
        if found is None or each.kind == "rule":
            continue
        reason = ""
        if found.kind != each.kind:
            reason = f"is a {found.kind} here and a {each.kind} at the active member"
        elif fixed := [name for name in unlike(each, found) if name in IMMUTABLE]:
            reason = f"{', '.join(_changes(found, each, fixed))} cannot change while the {each.kind} exists"
        if reason and key in made and not any(_within(each, key) for each in alien):
            replaced.append(key)
        elif reason:
            conflicts[key] = Conflict(found.path, reason, "delete it at the standby member, or exclude it")
    return replaced, conflicts


def _creations(wanted: Snapshot, fresh: Iterable[Key]) -> tuple[list[list[Step]], list[Step]]:
    """Creations in groups, and the updates that complete rings of forwarding."""
    entities = {key: wanted[key] for key in fresh if len(key) == _ENTITY}
    levels, stripped = _levels(entities)
    groups: list[list[Step]] = [[] for _ in range(max(levels.values(), default=-1) + 1)]
    completed: list[Step] = []
    for key, level in levels.items():
        entity = entities[key]
        without = stripped.get(key, ())
        bare = entity.with_settings(**dict.fromkeys(without, "")) if without else entity
        groups[level].append(Step(action="create", after=bare))
        if without:
            completed.append(Step(action="update", before=bare, after=entity, changed=tuple(without)))
    below: list[Step] = []
    for key in fresh:
        if len(key) == _SUBSCRIPTION:
            rules = tuple(each for other, each in wanted.items() if len(other) == _RULE and _within(other, key))
            below.append(Step(action="create", after=wanted[key], rules=rules))
    return [*groups, below], completed


def _levels(entities: Snapshot) -> tuple[dict[Key, int], dict[Key, list[str]]]:
    """A level for each entity, above those of what it forwards to, and the settings that would close a ring."""
    levels: dict[Key, int] = {}
    stripped: dict[Key, list[str]] = {}
    under_way: set[Key] = set()

    def targets(key: Key) -> Iterator[tuple[str, Key]]:
        for name in _FORWARDING:
            target = entities[key].settings.get(name)
            if target and (str(target).lower(),) in entities:
                yield name, (str(target).lower(),)

    for start in entities:  # iterative: a chain may be longer than Python's stack
        stack: list[tuple[Key, list[tuple[str, Key]]]] = []
        if start not in levels:
            under_way.add(start)
            stack.append((start, list(targets(start))))
        while stack:
            key, pending = stack[-1]
            if pending:
                name, target = pending.pop()
                if target in under_way:
                    stripped.setdefault(key, []).append(name)
                elif target not in levels:
                    under_way.add(target)
                    stack.append((target, list(targets(target))))
                continue
            stack.pop()
            under_way.discard(key)
            kept = [levels[each] for name, each in targets(key) if name not in stripped.get(key, ())]
            levels[key] = max(kept, default=-1) + 1
    return levels, stripped


def _updates(wanted: Snapshot, standing: Snapshot, keys: Iterable[Key]) -> list[list[Step]]:
    return [
        [
            Step(action="update", before=standing[key], after=wanted[key], changed=changed)
            for key in keys
            if len(key) < _RULE and (changed := unlike(wanted[key], standing[key]))
        ]
    ]


def _rules(
    wanted: Snapshot, standing: Snapshot, fresh: Collection[Key], stand: Iterable[Key], gone: Iterable[Key]
) -> list[list[Step]]:
    """Rules of subscriptions that exist; new ones first, so that no message falls between."""
    created = set(fresh)
    rules = [key for key in fresh if len(key) == _RULE and key[:_SUBSCRIPTION] not in created]
    new = [Step(action="create", after=wanted[key]) for key in rules]
    changed = [
        Step(action="update", before=standing[key], after=wanted[key], changed=names)
        for key in stand
        if len(key) == _RULE and (names := unlike(wanted[key], standing[key]))
    ]
    return [new, changed, [Step(action="delete", before=standing[key]) for key in gone]]


def _deletions(standing: Snapshot, keys: Collection[Key]) -> list[list[Step]]:
    """Subscriptions whose topics stay, then queues and topics, what forwards before its targets."""
    subscriptions = [key for key in keys if len(key) == _SUBSCRIPTION and key[:_ENTITY] not in keys]
    entities = {key: standing[key] for key in keys if len(key) == _ENTITY}
    levels, _ = _levels(entities)
    groups: list[list[Step]] = [[] for _ in range(max(levels.values(), default=-1) + 1)]
    for key, level in levels.items():
        groups[level].append(Step(action="delete", before=entities[key]))
    return [[Step(action="delete", before=standing[key]) for key in subscriptions], *reversed(groups)]


def _changes(before: Description, after: Description, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        stood, value = before.settings.get(name), after.settings.get(name)
        if name == "authorization_rules":
            yield _access_change(stood or (), value or ())
        else:
            yield f"{label(name)} {shown(name, stood)} → {shown(name, value)}"


def _access_change(stood: Iterable[AccessRule], wanted: Iterable[AccessRule]) -> str:
    old, new = {each.name: each for each in stood}, {each.name: each for each in wanted}
    parts = [f"+{each}" for name, each in new.items() if name not in old]
    parts += [f"-{name}" for name in old if name not in new]
    for name, each in new.items():
        if name in old and old[name] != each:
            parts.append(f"{name}: " + ("keys" if old[name].rights == each.rights else f"rights {old[name]} → {each}"))
    return "AuthorizationRules " + ", ".join(parts)
