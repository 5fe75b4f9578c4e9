"""The well-known key of the vendor's emulator.

What it is: the rule `RootManageSharedAccessKey` with the emulator's key, for applications that have its connection string.
What it is not: stored; it is valid while a namespace is served with it, and permits everything to every client that can connect.
Spec: Microsoft Learn, "Test locally by using the Azure Service Bus emulator": its connection strings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from isthmus.broker.security.keyring import ROOT_KEY_NAME
from isthmus.entities.catalog.description import AuthorizationRule

__all__ = ["EMULATOR_KEY", "emulator_connection_string", "with_emulator_key"]

EMULATOR_KEY = "SAS_KEY_VALUE"
_DEFAULT_PORT = 5672
_RIGHTS = ["Manage", "Send", "Listen"]


def with_emulator_key(rules: Iterable[AuthorizationRule]) -> list[AuthorizationRule]:
    """The rules, with the emulator's key as the secondary key of the root rule; its primary key stays valid."""
    found = {rule.key_name: rule for rule in rules}
    root = found.get(ROOT_KEY_NAME) or AuthorizationRule(ROOT_KEY_NAME, EMULATOR_KEY, EMULATOR_KEY, list(_RIGHTS))
    return list({**found, ROOT_KEY_NAME: replace(root, secondary_key=EMULATOR_KEY)}.values())


def emulator_connection_string(host: str, port: int) -> str:
    """The emulator's connection string, with the port where it is not the default."""
    place = host if port == _DEFAULT_PORT else f"{host}:{port}"
    return (
        f"Endpoint=sb://{place};SharedAccessKeyName={ROOT_KEY_NAME};SharedAccessKey={EMULATOR_KEY};"
        "UseDevelopmentEmulator=true;"
    )
