"""The changes at one member of a pair that make its entities equal to the other member's.

What it is: two snapshots in, steps out, in groups. What it is not: carrying them out.

Invariants:
    I1. The steps of one group are independent of each other; a group is carried out after all earlier groups.
    I2. A forwarding target is created before the entity that forwards to it, and deleted after it. In a ring of forwarding one entity is
        created without its target, which it gets by an update.
    I3. Only entities that pairing created are deleted, unless the operator consents.
    I4. A setting that cannot change while an entity exists is a conflict; if pairing created the entity, it is replaced.
    I5. The steps lead to a snapshot without differences (except conflicts and foreign entities).
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
        action: the kind of change.
        after: the entity after the change; None after a deletion.
        before: the entity before the change; None before a creation.
        changed: names of the settings that an update changes.
        rules: the rules of a created subscription.
    """

    action: Literal["create", "update", "delete"]
    after: Description | None = None
    before: Description | None = None
    changed: tuple[str, ...] = ()
    rules: tuple[Description, ...] = ()

    @property
    def entity(self) -> Description:
        """The entity that it concerns."""
        entity = self.after or self.before
        assert entity is not None
        return entity

    @property
    def details(self) -> tuple[str, ...]:
        """Each setting that changes, for people; keys are never included."""
        if self.action == "update" and self.after is not None and self.before is not None:
            return tuple(_changes(self.before, self.after, self.changed))
        return tuple(f"rule {rule.names[-1]}" for rule in self.rules)

    def __str__(self) -> str:
        sign = {"create": "+", "update": "~", "delete": "-"}[self.action]
        details = "; ".join(self.details)
        return f"{sign} {self.entity.kind} {self.entity.path}" + (f": {details}" if details else "")


class Conflict(NamedTuple):
    """A difference that pairing does not change automatically."""

    path: str
    reason: str
    hint: str

    def __str__(self) -> str:
        return f"! {self.path}: {self.reason}; {self.hint}"


@dataclass(frozen=True, slots=True)
class Drift:
    """The differences between two members.

    Attributes:
        groups: groups of steps, in order.
        conflicts: differences that the steps do not remove.
        foreign: entities that only the standby member has and that pairing did not create.
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
        """Whether the members are equal."""
        return not self.groups and not self.conflicts


def unlike(wanted: Description, existing: Description) -> tuple[str, ...]:
    """Names of the settings that differ; a setting that either side does not report is ignored."""
    return tuple(
        name
        for name, value in wanted.settings.items()
        if value is not None and (found := existing.settings.get(name)) is not None and not _same(name, found, value)
    )


def _same(name: str, found: object, value: object) -> bool:
    if name in _FORWARDING:
        return str(found).lower() == str(value).lower()
    return found == value


def difference(
    wanted: Snapshot, existing: Snapshot, *, made: Collection[Key] = (), may_delete_foreign: bool = False
) -> Drift:
    """The steps from the existing entities to the wanted ones.

    Args:
        wanted: entities of the active member.
        existing: entities of the standby member.
        made: keys of the entities that pairing created at the standby member.
        may_delete_foreign: whether the operator consents to the deletion of entities that pairing did not create.
    """
    deleted = {key for key in existing if key not in wanted}
    own = {key for key in deleted if may_delete_foreign or key in made or _is_rule_of_paired(key, wanted)}
    alien = {key for key in deleted - own if len(key) < _RULE}
    replaced, conflicts = _irreconcilable(wanted, existing, made, alien)
    left = tuple(conflicts)
    fresh = [key for key in wanted if (key not in existing or _is_within(key, replaced)) and not _is_within(key, left)]
    kept = [key for key in wanted if key in existing and not _is_within(key, replaced) and not _is_within(key, left)]
    removed = {
        key
        for key in own
        if not _is_within(key, replaced) and not _is_within(key, left) and not any(_within(each, key) for each in alien)
    }
    foreign = tuple(
        existing[key]
        for key in sorted(deleted - removed)
        if len(key) < _RULE and not _is_within(key, (*replaced, *left))
    )
    creations, completed = _creations(wanted, fresh)
    groups = [
        # Replaced entities are deleted first; all other deletions are last, when no creation can fail any more.
        *_deletions(existing, replaced),
        *creations,
        *_updates(wanted, existing, kept),
        completed,
        *_rules(wanted, existing, fresh, kept, [key for key in sorted(removed) if len(key) == _RULE]),
        *_deletions(existing, [key for key in sorted(removed) if len(key) < _RULE]),
    ]
    return Drift(tuple(tuple(group) for group in groups if group), tuple(conflicts.values()), foreign)


_ENTITY, _SUBSCRIPTION, _RULE = 1, 2, 3


def _within(key: Key, other: Key) -> bool:
    return key[: len(other)] == other


def _is_within(key: Key, others: Collection[Key]) -> bool:
    """Whether an entity, or one of its parents, is among others."""
    return any(key[:length] in others for length in range(1, len(key) + 1))


def _is_rule_of_paired(key: Key, wanted: Snapshot) -> bool:
    """Rules belong to their subscription: a rule that the active member's subscription lacks is deleted."""
    return len(key) == _RULE and key[:_SUBSCRIPTION] in wanted


def _irreconcilable(
    wanted: Snapshot, existing: Snapshot, made: Collection[Key], alien: Collection[Key]
) -> tuple[list[Key], dict[Key, Conflict]]:
    """Entities that only a new creation could make equal: those that pairing replaces, and the others."""
    replaced: list[Key] = []
    conflicts: dict[Key, Conflict] = {}
    for key, each in wanted.items():
        found = existing.get(key)
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
    """A level for each entity, above those of its forwarding targets, and the settings that would close a ring."""
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


def _updates(wanted: Snapshot, existing: Snapshot, keys: Iterable[Key]) -> list[list[Step]]:
    return [
        [
            Step(action="update", before=existing[key], after=wanted[key], changed=changed)
            for key in keys
            if len(key) < _RULE and (changed := unlike(wanted[key], existing[key]))
        ]
    ]


def _rules(
    wanted: Snapshot, existing: Snapshot, fresh: Collection[Key], kept: Iterable[Key], deleted: Iterable[Key]
) -> list[list[Step]]:
    """Rules of existing subscriptions; new ones first, so that no message is unselected in between."""
    created = set(fresh)
    rules = [key for key in fresh if len(key) == _RULE and key[:_SUBSCRIPTION] not in created]
    new = [Step(action="create", after=wanted[key]) for key in rules]
    changed = [
        Step(action="update", before=existing[key], after=wanted[key], changed=names)
        for key in kept
        if len(key) == _RULE and (names := unlike(wanted[key], existing[key]))
    ]
    return [new, changed, [Step(action="delete", before=existing[key]) for key in deleted]]


def _deletions(existing: Snapshot, keys: Collection[Key]) -> list[list[Step]]:
    """Subscriptions whose topics stay, then queues and topics; entities that forward before their targets."""
    subscriptions = [key for key in keys if len(key) == _SUBSCRIPTION and key[:_ENTITY] not in keys]
    entities = {key: existing[key] for key in keys if len(key) == _ENTITY}
    levels, _ = _levels(entities)
    groups: list[list[Step]] = [[] for _ in range(max(levels.values(), default=-1) + 1)]
    for key, level in levels.items():
        groups[level].append(Step(action="delete", before=entities[key]))
    return [[Step(action="delete", before=existing[key]) for key in subscriptions], *reversed(groups)]


def _changes(before: Description, after: Description, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        old, value = before.settings.get(name), after.settings.get(name)
        if name == "authorization_rules":
            yield _access_change(old or (), value or ())
        else:
            yield f"{label(name)} {shown(name, old)} → {shown(name, value)}"


def _access_change(existing: Iterable[AccessRule], wanted: Iterable[AccessRule]) -> str:
    old, new = {each.name: each for each in existing}, {each.name: each for each in wanted}
    parts = [f"+{each}" for name, each in new.items() if name not in old]
    parts += [f"-{name}" for name in old if name not in new]
    for name, each in new.items():
        if name in old and old[name] != each:
            parts.append(f"{name}: " + ("keys" if old[name].rights == each.rights else f"rights {old[name]} → {each}"))
    return "AuthorizationRules " + ", ".join(parts)
