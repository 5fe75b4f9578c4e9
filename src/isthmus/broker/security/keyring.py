"""Who may do what: authorization rules, their keys, and the grants that tokens and keys earn.

What it is: the namespace's own rules with their key file, the rules of entities looked up where the engine keeps them,
and the checks that the `$cbs` node, SASL PLAIN and the administration API share. What it is not: the enforcement; each
link and each request asks `Grant.covers`. Barely over 400 lines: the key file, its rotation and the checks are about the
same rules and nothing else may see a key.
Spec: service-bus-sas.md; docs/explanation/protocol.md, Tokens.

Invariants:
    I1. A grant never reaches beyond the audience that its token was shown for, nor beyond the token's scope, nor beyond
        the entity whose rule signed it.
    I2. The key file has mode 0600 from its first byte on, and a reader finds it whole or not at all.
    I3. Unknown key names and wrong keys get the same answer.
    I4. No repr and no error text holds a key.
    I5. A grant holds only as long as its rule exists, with the key that earned it and the rights that it gave.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from isthmus.broker.security.own_host import OwnHosts
from isthmus.broker.security.resource import check_host, scope_of
from isthmus.broker.security.sas import (
    TOKEN_PREFIX,
    ExpiredTokenError,
    InvalidAudienceError,
    InvalidSignatureError,
    MalformedTokenError,
    SasToken,
    canonical_path,
    covers,
    parents,
)
from isthmus.clock import Clock
from isthmus.entities.catalog.description import AuthorizationRule
from isthmus.errors import ConfigError, Fault, InvalidArgumentError
from isthmus.whole_file import write_file

__all__ = [
    "KEY_FILE",
    "ROOT_KEY_NAME",
    "RULES_LIMIT",
    "Authority",
    "EntityRules",
    "Grant",
    "Keyring",
    "Right",
    "TokenClaims",
    "TokenIssuer",
    "check_rules",
    "merge_rules",
    "new_key",
]

# In the data folder.
KEY_FILE = "keys.json"
ROOT_KEY_NAME = "RootManageSharedAccessKey"
# The service's limit for a namespace, a queue or a topic.
RULES_LIMIT = 12
_FILE_VERSION = 1


class Right(StrEnum):
    """What a rule permits."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


class EntityRules(Protocol):
    """The rules of entities, where the engine keeps them."""

    def of(self, path: str) -> Sequence[AuthorizationRule]:
        """The rules of the entity with a canonical path; empty where there is no such entity."""
        ...

    def named(self, key_name: str) -> Iterable[tuple[str, AuthorizationRule]]:
        """Every entity's rule of that name, with the entity's canonical path."""
        ...

    def exists(self, path: str) -> bool:
        """Whether an entity has this canonical path."""
        ...


class NoEntityRules:
    """Entities without rules."""

    def of(self, path: str) -> Sequence[AuthorizationRule]:
        return ()

    def named(self, key_name: str) -> Iterable[tuple[str, AuthorizationRule]]:
        return ()

    def exists(self, path: str) -> bool:
        return False


class TokenClaims(Protocol):
    """What a web token says that holds."""

    @property
    def subject(self) -> str:
        """For whom it was issued."""
        ...

    @property
    def rights(self) -> frozenset[Right]:
        """What it permits."""
        ...

    @property
    def expires_at_ms(self) -> int:
        """Wall time of its end."""
        ...


class TokenIssuer(Protocol):
    """Who issues web tokens; see `isthmus.broker.security.jwt`, which loads a library that few namespaces need."""

    def check(self, token: str, now_ms: int) -> TokenClaims:
        """What a token says.

        Raises:
            TokenError: of the kind that says why it does not hold.
        """
        ...


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token or key permits.

    Attributes:
        scope_path: canonical path at and below which the rights hold; ``""`` is the whole namespace.
        rights: Manage stands for the others too.
        key_name: the rule that earned it.
        expires_at_ms: wall time after which the grant is void; None for a key given directly.
        key: the shared key that earned it; "" for a web token.
    """

    scope_path: str
    rights: frozenset[Right]
    key_name: str
    expires_at_ms: int | None = None
    key: str = field(default="", repr=False)

    def covers(self, path: str, right: Right) -> bool:
        """Whether the grant permits `right` on an address such as ``sb://host/queue`` or ``topic/Subscriptions/s``."""
        return (right in self.rights or Right.MANAGE in self.rights) and covers(self.scope_path, canonical_path(path))

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_at_ms is not None and now_ms >= self.expires_at_ms


class Keyring:
    """The rules of the namespace itself.

    Args:
        rules: with distinct names.
    """

    def __init__(self, rules: Iterable[AuthorizationRule]) -> None:
        self._rules = {rule.key_name: rule for rule in rules}
        check_rules(list(self._rules.values()))

    @classmethod
    def open(cls, file: Path, clock: Clock, random_bytes: Callable[[int], bytes] = os.urandom) -> Keyring:
        """Read the key file, or make it with one rule of random keys that permits everything.

        Raises:
            ConfigError: the file is there but is no key file.
        """
        if not file.exists():
            now_ms = clock.wall_ms()
            rights = [str(right) for right in Right]
            keys = new_key(random_bytes), new_key(random_bytes)
            keyring = cls([AuthorizationRule(ROOT_KEY_NAME, *keys, rights, now_ms, now_ms)])
            keyring.save(file)
            return keyring
        file.chmod(0o600)
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["version"] != _FILE_VERSION:
                raise ConfigError([Fault(f"key file version {content['version']} is not known", file=str(file))])
            return cls(AuthorizationRule(**rule) for rule in content["rules"])
        except (ValueError, KeyError, TypeError, InvalidArgumentError):
            # The cause may quote the file, and with it a key.
            fault = Fault("not a key file", "restore it, or delete it to have new keys made", file=str(file))
            raise ConfigError([fault]) from None

    def save(self, file: Path) -> None:
        """Write the key file with mode 0600, whole or not at all."""
        rules = [
            {name: getattr(rule, name) for name in AuthorizationRule.__dataclass_fields__}
            for rule in self._rules.values()
        ]
        write_file(file, json.dumps({"version": _FILE_VERSION, "rules": rules}, indent=2).encode())

    @property
    def rules(self) -> Sequence[AuthorizationRule]:
        return tuple(self._rules.values())

    def replace(self, rules: Iterable[AuthorizationRule]) -> None:
        """Take other rules instead of all.

        Raises:
            InvalidArgumentError: one is malformed, or there are too many; nothing has changed.
        """
        fresh = list(rules)
        check_rules(fresh)
        self._rules = {rule.key_name: rule for rule in fresh}

    def put(self, rule: AuthorizationRule) -> None:
        """Add a rule, or replace the one of that name, e.g. to rotate a key.

        Raises:
            InvalidArgumentError: the rule is malformed or one too many.
        """
        check_rules([*(each for name, each in self._rules.items() if name != rule.key_name), rule])
        self._rules[rule.key_name] = rule

    def connection_string(
        self,
        endpoint: str,
        *,
        key_name: str = ROOT_KEY_NAME,
        emulator: bool = False,
        entity_path: str = "",
    ) -> str:
        """The text that clients take.

        Args:
            endpoint: host, or host and port, e.g. ``localhost:5672``.
            key_name: a rule of the namespace.
            emulator: whether clients are to speak AMQP without TLS and keep the endpoint's port.
            entity_path: the one entity that the client is for.

        Raises:
            InvalidArgumentError: there is no such rule.
        """
        rule = self._rules.get(key_name)
        if rule is None:
            raise InvalidArgumentError(
                f"there is no authorization rule '{key_name}'; there are {', '.join(self._rules)}"
            )
        text = f"Endpoint=sb://{endpoint}/;SharedAccessKeyName={key_name};SharedAccessKey={rule.primary_key}"
        text += f";EntityPath={entity_path}" if entity_path else ""
        return text + (";UseDevelopmentEmulator=true" if emulator else "")


class Authority:
    """Turns tokens and keys into grants.

    Args:
        keyring: the namespace's own rules.
        entity_rules: the rules of entities.
        issuer: checks web tokens; None takes none.
        hosts: the server's own, which a token's resource may begin with.
    """

    def __init__(
        self,
        keyring: Keyring,
        entity_rules: EntityRules | None = None,
        issuer: TokenIssuer | None = None,
        hosts: Container[str] | None = None,
    ) -> None:
        self.keyring = keyring
        self._entity_rules = entity_rules or NoEntityRules()
        self._issuer = issuer
        self._hosts = OwnHosts() if hosts is None else hosts

    def authorise_token(self, token: str, audience: str, now_ms: int) -> Grant:
        """The grant that a token earns for an audience.

        Args:
            token: ``SharedAccessSignature …``, or a web token, with ``Bearer`` before it or without.
            audience: the URI that the token is shown for; its path is the grant's scope.
            now_ms: wall time.

        Raises:
            TokenError: of the kind that says why.
        """
        path = canonical_path(audience)
        if not token.startswith(TOKEN_PREFIX):
            if self._issuer is None:
                raise MalformedTokenError("The token is of no kind that this namespace knows: SharedAccessSignature.")
            claims = self._issuer.check(token.removeprefix("Bearer ").strip(), now_ms)
            return Grant(path, claims.rights, claims.subject, claims.expires_at_ms)
        sas = SasToken.parse(token)
        scope = scope_of(sas.resource, self._hosts, self._entity_rules.exists)
        # The signature comes first: nothing else about the token is true before it.
        signed = ((rule, _signing_key(sas, rule)) for rule in self._rules_over(scope, sas.key_name))
        rule, key = next(((rule, key) for rule, key in signed if key), (None, ""))
        if rule is None:
            raise InvalidSignatureError
        if sas.is_expired(now_ms):
            raise ExpiredTokenError(sas.expires_at_ms)
        check_host(sas.resource, self._hosts, self._entity_rules.exists)
        if not covers(scope, path):
            raise InvalidAudienceError(scope, path)
        return Grant(path, frozenset(map(Right, rule.rights)), rule.key_name, sas.expires_at_ms, key)

    def authorise_plain(self, key_name: str, key: str) -> list[Grant]:
        """The grants of a key given directly, as SASL PLAIN does.

        It names no entity: the namespace's own rule comes first, and without one each entity whose rule has this name
        and key is opened, and no other.

        Raises:
            InvalidSignatureError: there is no such rule, or the key is not one of its two.
        """
        own = [("", rule) for rule in self._rules_over("", key_name)]
        for rules in (own, self._entity_rules.named(key_name)):
            grants = [
                Grant(path, frozenset(map(Right, rule.rights)), rule.key_name, None, key)
                for path, rule in rules
                if _has_key(rule, key)
            ]
            if grants:
                return grants
        raise InvalidSignatureError("The key is invalid.")

    def stands(self, grant: Grant) -> bool:
        """Whether what earned a grant would still earn it, its expiry aside."""
        return not grant.key or any(
            grant.key in (rule.primary_key, rule.secondary_key) and grant.rights <= set(map(Right, rule.rights))
            for rule in self._rules_over(grant.scope_path, grant.key_name)
        )

    def _rules_over(self, scope: str, key_name: str) -> Iterator[AuthorizationRule]:
        """The rules of that name on the namespace and on every entity whose path is `scope` or a parent of it."""
        for path in parents(scope):
            rules = self._entity_rules.of(path) if path else self.keyring.rules
            yield from (rule for rule in rules if rule.key_name == key_name)


def new_key(random_bytes: Callable[[int], bytes] = os.urandom) -> str:
    """A key of 256 random bits in base64, the service's form."""
    return base64.b64encode(random_bytes(32)).decode()


def merge_rules(
    wanted: Iterable[AuthorizationRule], standing: Iterable[AuthorizationRule], now_ms: int
) -> list[AuthorizationRule]:
    """Rules as an operator wrote them, completed: a key that is "" is that of the standing rule, or a new one."""
    before = {rule.key_name: rule for rule in standing}
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
    """Refuse what the service refuses in the rules of one namespace or entity.

    Raises:
        InvalidArgumentError: with the first thing wrong.
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


def _signing_key(token: SasToken, rule: AuthorizationRule) -> str:
    """The key that made the signature, or ""; both are tried, so that the time taken tells nothing."""
    return "".join([key for key in {rule.primary_key, rule.secondary_key} if token.is_signed_by(key)])


def _has_key(rule: AuthorizationRule, key: str) -> bool:
    """Whether a key is one of a rule's two; both are compared whatever the first says: the time taken tells nothing."""
    keys = rule.primary_key, rule.secondary_key
    return bool(sum(hmac.compare_digest(key.encode(), each.encode()) for each in keys if each))
