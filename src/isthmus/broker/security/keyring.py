"""The rules of the namespace itself, with their key file.

What it is: the rules, their changes, and their file in the data folder. What it is not: the rules of entities
(`isthmus.entities`), the checks of a rule (`rule`), or its grants (`authority`).
Spec: service-bus-sas.md.

Invariants:
    I1. The key file has mode 0600 from its creation, and a reader finds it complete or not at all.
    I2. No repr and no error text contains a key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from isthmus.broker.security.grant import Right
from isthmus.broker.security.rule import check_rules, new_key
from isthmus.clock import Clock
from isthmus.entities.catalog.description import AuthorizationRule
from isthmus.errors import ConfigError, Fault, InvalidArgumentError
from isthmus.whole_file import write_file

__all__ = ["KEY_FILE", "ROOT_KEY_NAME", "Keyring"]

# In the data folder.
KEY_FILE = "keys.json"
ROOT_KEY_NAME = "RootManageSharedAccessKey"
_FILE_VERSION = 1


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
        """Reads the key file, or creates it with one rule with random keys and all rights.

        Raises:
            ConfigError: the file exists but is not a key file.
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
        """Writes the key file atomically, with mode 0600."""
        rules = [
            {name: getattr(rule, name) for name in AuthorizationRule.__dataclass_fields__}
            for rule in self._rules.values()
        ]
        write_file(file, json.dumps({"version": _FILE_VERSION, "rules": rules}, indent=2).encode())

    @property
    def rules(self) -> Sequence[AuthorizationRule]:
        return tuple(self._rules.values())

    def replace(self, rules: Iterable[AuthorizationRule]) -> None:
        """Replaces all rules.

        Raises:
            InvalidArgumentError: one is malformed, or there are too many; nothing has changed.
        """
        fresh = list(rules)
        check_rules(fresh)
        self._rules = {rule.key_name: rule for rule in fresh}

    def put(self, rule: AuthorizationRule) -> None:
        """Add a rule, or replace the one of that name, e.g. to rotate a key.

        Raises:
            InvalidArgumentError: the rule is malformed, or there are too many.
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
        """A connection string.

        Args:
            endpoint: host, or host and port, e.g. ``localhost:5672``.
            key_name: a rule of the namespace.
            emulator: whether clients use AMQP without TLS and the endpoint's port.
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
