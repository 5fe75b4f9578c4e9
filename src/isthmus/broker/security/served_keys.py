"""The keys of a running namespace: its key file, updated from its config file, and read again when it changes.

What it is: which rules the namespace's keyring has, and when keys are read. What it is not: the rules and their file (`keyring`, `rule`), or a
timer (`isthmus.broker.server`). Spec: docs/explanation/protocol.md, Tokens.

Invariants:
    I1. A rule of the config file without keys keeps its keys; a rule that is no longer in the config file is removed, except the root's.
    I2. If a file cannot be read, the keys stay as they are and the file is read again later; a fault is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from isthmus.broker.security.emulator_key import with_emulator_key
from isthmus.broker.security.keyring import KEY_FILE, ROOT_KEY_NAME, Keyring
from isthmus.broker.security.rule import merge_rules
from isthmus.clock import Clock
from isthmus.entities.catalog.description import AuthorizationRule
from isthmus.errors import ConfigError, InvalidArgumentError

__all__ = ["IssuerKeys", "ServedKeys"]

_log = logging.getLogger(__name__)


class IssuerKeys(Protocol):
    """The keys of the issuer of web tokens (`isthmus.broker.security.jwt`)."""

    def refresh(self) -> bool:
        """Reads them again if they have changed; returns whether they had."""
        ...


class ServedKeys:
    """The keys of one namespace.

    Args:
        data: the data folder, which has the key file.
        clock: the machine's.
        issuer: of web tokens; None where there is none.
        emulator: whether the emulator's key is accepted, too.

    Attributes:
        keyring: the namespace's own rules.
    """

    def __init__(self, data: Path, clock: Clock, issuer: IssuerKeys | None, *, emulator: bool) -> None:
        self._file = data / KEY_FILE
        self._clock = clock
        self._issuer = issuer
        self._emulator = emulator
        self._fault = ""
        self.keyring = Keyring.open(self._file, clock)
        self._stamp = self._file.stat().st_mtime_ns
        self._take(self.keyring.rules)

    def apply(self, wanted: Iterable[AuthorizationRule]) -> None:
        """Updates the key file to the rules of the config file (I1).

        Raises:
            InvalidArgumentError: one is malformed, or there are too many.
        """
        keyring = Keyring.open(self._file, self._clock)
        existing = keyring.rules
        wanted = list(wanted)
        named = {rule.key_name for rule in wanted}
        kept = [rule for rule in existing if rule.key_name == ROOT_KEY_NAME and rule.key_name not in named]
        keyring.replace([*kept, *merge_rules(wanted, existing, self._clock.wall_ms())])
        if tuple(keyring.rules) != tuple(existing):
            keyring.save(self._file)
        self._stamp = self._file.stat().st_mtime_ns
        self._take(keyring.rules)

    def refresh(self) -> None:
        """Reads keys that were changed in their files (I2)."""
        faults = []
        for read in (self._read_own, self._read_issuers):
            try:
                read()
            except (ConfigError, InvalidArgumentError, OSError) as error:
                faults.append(str(error))
        fault = "; ".join(faults)
        if fault and fault != self._fault:
            _log.warning("keys not read again: reason=%s", fault)
        self._fault = fault

    def _read_own(self) -> None:
        stamp = self._file.stat().st_mtime_ns
        if stamp != self._stamp:
            self._take(Keyring.open(self._file, self._clock).rules)
            self._stamp = stamp
            _log.info("keys read again: rules=%s", [rule.key_name for rule in self.keyring.rules])

    def _read_issuers(self) -> None:
        if self._issuer is not None and self._issuer.refresh():
            _log.info("keys of the issuer read again")

    def _take(self, rules: Iterable[AuthorizationRule]) -> None:
        """Gives the keyring the rules of the key file, and the emulator's key if it is enabled."""
        self.keyring.replace(with_emulator_key(rules) if self._emulator else rules)
