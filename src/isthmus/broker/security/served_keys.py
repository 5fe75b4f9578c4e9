"""The keys of a namespace that runs: its key file, brought in line with its config file, and read again when it changes.

What it is: which rules the namespace's keyring has, and when keys are read. What it is not: the rules and their file (`keyring`, `rule`), or a
timer (`isthmus.broker.server`). Spec: docs/explanation/protocol.md, Tokens.

Invariants:
    I1. A rule of the config file without keys keeps those that it had; one that the config file names no longer is gone, but the root's.
    I2. What cannot be read leaves the keys as they are, and is read again; a fault is logged once.
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
    """The keys of who issues web tokens (`isthmus.broker.security.jwt`)."""

    def refresh(self) -> bool:
        """Reads them again if they have changed; whether they had."""
        ...


class ServedKeys:
    """Those of one namespace.

    Args:
        data: the data folder, which has the key file.
        clock: the machine's.
        issuer: of web tokens; None where there is none.
        emulator: whether the emulator's key is taken, too.

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
        """Brings the key file in line with the rules of the config file (I1).

        Raises:
            InvalidArgumentError: one is malformed, or there are too many.
        """
        keyring = Keyring.open(self._file, self._clock)
        standing = keyring.rules
        wanted = list(wanted)
        named = {rule.key_name for rule in wanted}
        kept = [rule for rule in standing if rule.key_name == ROOT_KEY_NAME and rule.key_name not in named]
        keyring.replace([*kept, *merge_rules(wanted, standing, self._clock.wall_ms())])
        if tuple(keyring.rules) != tuple(standing):
            keyring.save(self._file)
        self._stamp = self._file.stat().st_mtime_ns
        self._take(keyring.rules)

    def look(self) -> None:
        """Takes over keys that were changed in their files (I2)."""
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
        """Lets the keyring have the rules of the key file, and the emulator's key where it is asked for."""
        self.keyring.replace(with_emulator_key(rules) if self._emulator else rules)
