"""Keys and issuers in a namespace's file.

What it is: the sections ``authorization_rules`` and ``jwt`` read, with keys resolved from the references in the file.
What it is not: the use of the rules (`keyring`), the tokens (`jwt`), nor the rest of the file (`config`).
Spec: service-bus-sas.md; docs/explanation/protocol.md, Tokens.

Invariants:
    I1. No key is in the file itself, and no fault's text contains one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from isthmus.broker.security.grant import Right
from isthmus.broker.security.jwt_setting import JwtSettings
from isthmus.entities.catalog.description import AuthorizationRule
from isthmus.topology.file.document import Document
from isthmus.topology.file.reference import SecretError, SecretReference
from isthmus.topology.file.setting import Kind, Setting, Spec

__all__ = ["read_authorization_rules", "read_jwt"]

_KEY = Setting(
    name="key", kind=Kind.REFERENCE, description="Where a shared key is.", secret=True, example="env:ORDERS_KEY"
)
_JWT = Spec(
    "jwt",
    "Who issues web tokens that open the namespace.",
    (
        Setting(name="issuer", kind=Kind.TEXT, required=True, description="The claim iss.", example="https://issuer"),
        Setting(
            name="keys",
            kind=Kind.PATH,
            required=True,
            description="Public keys: PEM, or a JSON key set.",
            example="issuer.json",
        ),
        Setting(
            name="audience",
            kind=Kind.TEXT,
            description="What the claim aud must name.",
            example="https://servicebus.azure.net",
        ),
        Setting(
            name="rights_claim",
            kind=Kind.TEXT,
            description="The claim with Send, Listen, Manage or Azure's data roles.",
            default="roles",
            example="roles",
        ),
    ),
)


def read_authorization_rules(document: Document, node: yaml.Node, what: str) -> list[AuthorizationRule]:
    """The rules of one namespace or entity; a missing key is "".

    Args:
        document: gets the faults.
        node: the mapping from names to rules.
        what: whose rules, for faults.
    """
    rules = []
    for name, (key, value) in document.pairs(node, f"authorization_rules of {what}").items():
        rule = f"authorization rule {name} of {what}"
        pairs = document.pairs(value, rule)
        for word, (place, _) in pairs.items():
            if word not in ("rights", "primary_key", "secondary_key"):
                document.fault(
                    document.place(place), f"{rule} has no setting {word!r}", "write rights, primary_key, secondary_key"
                )
        rights = _rights(document, pairs["rights"][1], rule) if "rights" in pairs else []
        if not rights:
            document.fault(document.place(key), f"{rule} has no rights", "write rights: [Send]")
        keys = [
            _key(document, pairs[word][1], rule) if word in pairs else "" for word in ("primary_key", "secondary_key")
        ]
        rules.append(AuthorizationRule(name, keys[0], keys[1], rights))
    return rules


def read_jwt(document: Document, node: yaml.Node, folder: Path) -> JwtSettings | None:
    """The issuer; None where the section has a fault.

    Args:
        document: gets the faults.
        node: the section.
        folder: where a relative path starts.
    """
    values = document.settings(node, _JWT, "jwt")
    if values.faulty or not isinstance(node, yaml.MappingNode):
        return None
    given: dict[str, Any] = {"audiences": (values["audience"],)} if values.written("audience") else {}
    return JwtSettings(values["issuer"], folder / values["keys"], rights_claim=values["rights_claim"], **given)


def _rights(document: Document, node: yaml.Node, rule: str) -> list[str]:
    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    rights: list[str] = []
    for item in items:
        text = str(item.value) if isinstance(item, yaml.ScalarNode) else ""
        if text not in set(Right):
            document.fault(document.place(item), f"{rule} has an unknown right", "write Send, Listen or Manage")
        elif text not in rights:
            rights.append(text)
    # Manage stands for all three; the service wants them written, a file need not.
    return list(map(str, Right)) if Right.MANAGE in rights else rights


def _key(document: Document, node: yaml.Node, rule: str) -> str:
    hint = "write env:NAME or file:/path"
    try:
        where = SecretReference.parse(document.scalar(_KEY, node))
        if where.scheme == "env":
            found = os.environ.get(where.location, "")
        elif where.scheme == "file" and not where.key:
            found = Path(where.location).read_text(encoding="utf-8").strip()
        else:
            found = ""
    except (SecretError, ValueError, OSError):
        found = ""
    if not found:
        document.fault(document.place(node), f"a key of {rule} cannot be read", hint)
    return found
