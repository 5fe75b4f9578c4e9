"""The key that the vendor's emulator is known by.

What it is: the rule `RootManageSharedAccessKey` with the emulator's key, for applications that have its connection string.
What it is not: stored; it counts while a namespace is served with it, and opens the namespace to everybody who reaches it.
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
    """The rules, of which the root's has the emulator's key as its secondary one; its primary one goes on."""
    found = {rule.key_name: rule for rule in rules}
    root = found.get(ROOT_KEY_NAME) or AuthorizationRule(ROOT_KEY_NAME, EMULATOR_KEY, EMULATOR_KEY, list(_RIGHTS))
    return list({**found, ROOT_KEY_NAME: replace(root, secondary_key=EMULATOR_KEY)}.values())


def emulator_connection_string(host: str, port: int) -> str:
    """What applications of the emulator have, with the port where it is another one."""
    place = host if port == _DEFAULT_PORT else f"{host}:{port}"
    return (
        f"Endpoint=sb://{place};SharedAccessKeyName={ROOT_KEY_NAME};SharedAccessKey={EMULATOR_KEY};"
        "UseDevelopmentEmulator=true;"
    )
