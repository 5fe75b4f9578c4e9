"""The settings of the issuer of web tokens; not in `jwt`, which loads a library that few namespaces need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["JwtSettings"]


@dataclass(frozen=True, slots=True)
class JwtSettings:
    """The settings of the issuer.

    Attributes:
        issuer: the `iss` claim, letter for letter.
        audiences: the `aud` claim must name one of them.
        keys: a PEM file with one public key, or a JSON file with a key set (JWKS).
        rights_claim: the claim with the rights: a list or a text with spaces of Send, Listen, Manage or the names of
            Azure's data roles; others in it are ignored.
    """

    issuer: str
    keys: Path
    audiences: tuple[str, ...] = ("https://servicebus.azure.net", "https://servicebus.azure.net/")
    rights_claim: str = "roles"
