"""Authorization rules: their validation as by the service, their completion, and their keys.

What it is: the checks of the rules of one namespace or entity, pure except for random keys. What it is not: their storage (`keyring`,
`isthmus.entities`), or their grants (`authority`). Spec: service-bus-sas.md.

Invariants:
    I1. No error text contains a key.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Sequence

from isthmus.broker.security.grant import Right
from isthmus.entities.catalog.description import AuthorizationRule
from isthmus.errors import InvalidArgumentError

__all__ = ["RULES_LIMIT", "check_rules", "merge_rules", "new_key"]

# The service's limit for a namespace, a queue or a topic.
RULES_LIMIT = 12


def new_key(random_bytes: Callable[[int], bytes] = os.urandom) -> str:
    """A key of 256 random bits in base64, the service's form."""
    return base64.b64encode(random_bytes(32)).decode()


def merge_rules(
    wanted: Iterable[AuthorizationRule], existing: Iterable[AuthorizationRule], now_ms: int
) -> list[AuthorizationRule]:
    """Rules as an operator wrote them, completed: a key that is "" becomes that of the existing rule, or a new one."""
    before = {rule.key_name: rule for rule in existing}
    merged: list[AuthorizationRule] = []
    for rule in wanted:
        old = before.get(rule.key_name)
        made = AuthorizationRule(
            key_name=rule.key_name,
            primary_key=rule.primary_key or (old.primary_key if old else new_key()),
            secondary_key=rule.secondary_key or (old.secondary_key if old else new_key()),
            rights=list(rule.rights),
            created_at_ms=old.created_at_ms if old else now_ms,
            modified_at_ms=old.modified_at_ms if old else now_ms,
        )
        if made != old:
            made.modified_at_ms = now_ms
        merged.append(made)
    check_rules(merged)
    return merged


def check_rules(rules: Sequence[AuthorizationRule]) -> None:
    """Checks the rules of one namespace or entity as the service does.

    Raises:
        InvalidArgumentError: with the first fault.
    """
    if len(rules) > RULES_LIMIT:
        raise InvalidArgumentError(f"There are {len(rules)} authorization rules; the limit is {RULES_LIMIT}.")
    names = [rule.key_name for rule in rules]
    for rule in rules:
        rights = set(rule.rights)
        if not rule.key_name or len(rule.key_name) > 256 or names.count(rule.key_name) > 1:
            raise InvalidArgumentError(
                f"The authorization rule name '{rule.key_name[:64]}' is empty, too long or taken."
            )
        if not rights or not rights <= set(Right) or len(rights) != len(rule.rights):
            raise InvalidArgumentError(
                f"The rights of '{rule.key_name}' must be some of Send, Listen and Manage, once each."
            )
        if Right.MANAGE in rights and len(rights) < len(Right):
            raise InvalidArgumentError(
                f"The rights of '{rule.key_name}' have Manage, which needs Send and Listen as well."
            )
        if not all(key and isinstance(key, str) for key in (rule.primary_key, rule.secondary_key)):
            raise InvalidArgumentError(f"The authorization rule '{rule.key_name}' lacks a key.")
