"""From tokens and keys to grants.

What it is: the checks that the `$cbs` node, SASL PLAIN and the administration API share, by the rules of the namespace (`keyring`) and those of
entities, looked up in the engine. What it is not: the enforcement; each link and each request calls `Grant.covers`.
Spec: service-bus-sas.md; docs/explanation/protocol.md, Tokens.

Invariants:
    I1. A grant never exceeds the audience that its token was shown for, the token's scope, or the entity whose rule signed
        it.
    I2. Unknown key names and wrong keys get the same answer.
    I3. A grant is valid only as long as its rule exists, with the key and the rights that it was made of.
"""

from __future__ import annotations

import hmac
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Protocol

from isthmus.broker.security.grant import Grant, Right
from isthmus.broker.security.keyring import Keyring
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
from isthmus.entities.catalog.description import AuthorizationRule

__all__ = ["Authority", "EntityRules", "TokenClaims", "TokenIssuer"]


class EntityRules(Protocol):
    """The rules of entities, from the engine."""

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
    """The claims of a valid web token."""

    @property
    def subject(self) -> str:
        """Its subject."""
        ...

    @property
    def rights(self) -> frozenset[Right]:
        """Its rights."""
        ...

    @property
    def expires_at_ms(self) -> int:
        """Wall time of its end."""
        ...


class TokenIssuer(Protocol):
    """The issuer of web tokens; see `isthmus.broker.security.jwt`, which loads a library that few namespaces need."""

    def check(self, token: str, now_ms: int) -> TokenClaims:
        """The claims of a token.

        Raises:
            TokenError: of the kind that says why it is invalid.
        """
        ...


class Authority:
    """Turns tokens and keys into grants.

    Args:
        keyring: the namespace's own rules.
        entity_rules: the rules of entities.
        issuer: checks web tokens; None accepts none.
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
        """The grant of a token for an audience.

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
        # The signature is checked first: nothing else in the token can be trusted before.
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

        It names no entity: the namespace's own rule is used first, and without one the key grants access to each entity whose
        rule has this name and key, and to no other.

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

    def is_current(self, grant: Grant) -> bool:
        """Whether a grant is still valid with the present rules and keys, apart from its expiry."""
        return not grant.key or any(
            grant.key in (rule.primary_key, rule.secondary_key) and grant.rights <= set(map(Right, rule.rights))
            for rule in self._rules_over(grant.scope_path, grant.key_name)
        )

    def _rules_over(self, scope: str, key_name: str) -> Iterator[AuthorizationRule]:
        """The rules of that name on the namespace and on every entity whose path is `scope` or a parent of it."""
        for path in parents(scope):
            rules = self._entity_rules.of(path) if path else self.keyring.rules
            yield from (rule for rule in rules if rule.key_name == key_name)


def _signing_key(token: SasToken, rule: AuthorizationRule) -> str:
    """The key that made the signature, or ""; both are tried, so that the time taken reveals nothing."""
    return "".join([key for key in {rule.primary_key, rule.secondary_key} if token.is_signed_by(key)])


def _has_key(rule: AuthorizationRule, key: str) -> bool:
    """Whether a key is one of a rule's two; both are always compared, so that the time taken reveals nothing."""
    keys = rule.primary_key, rule.secondary_key
    return bool(sum(hmac.compare_digest(key.encode(), each.encode()) for each in keys if each))
