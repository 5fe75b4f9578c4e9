"""References to secrets.

What it is: the syntax of the references that files, Spark options, plans and checkpoints carry instead of secrets:
`env:NAME`, `file:/path#key`, `keyvault:vault/name`. What it is not: their resolution, which is I/O, in
`isthmus.connectors.secret`.

Invariants:
    I1. A malformed reference is never repeated in an error: it may be a secret written instead of a reference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import IsthmusError

__all__ = ["SCHEMES", "SecretError", "SecretReference"]

SCHEMES = ("env", "file", "keyvault")

_VAULT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{1,22}[A-Za-z0-9]")
_SECRET_NAME = re.compile(r"[A-Za-z0-9-]{1,127}")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SecretError(IsthmusError):
    """A reference is malformed, or its secret cannot be read."""

    code = "secret"

    def __init__(self, reference: str = "", reason: str = "", hint: str = "") -> None:
        super().__init__("", reference=reference, reason=reason, hint=hint)
        self.reference = reference
        self.reason = reason
        self.hint = hint

    def text(self) -> str:
        return f"{self.reference}: {self.reason}" + (f"; {self.hint}" if self.hint else "")


@dataclass(frozen=True, slots=True)
class SecretReference:
    """The location of a secret: a scheme and the scheme's parameters.

    Attributes:
        scheme: one of `SCHEMES`.
        location: variable name, file path, or vault name (or its host).
        key: field of the file, or the secret's name in the vault; empty for env and for a whole file.
    """

    scheme: str
    location: str
    key: str = ""

    @classmethod
    def parse(cls, text: str) -> SecretReference:
        """Read `env:NAME`, `file:/path`, `file:/path#key` or `keyvault:vault/name`.

        Raises:
            SecretError: the text is none of these.
        """
        scheme, _, rest = text.partition(":")
        if scheme == "env":
            if not _ENVIRONMENT_NAME.fullmatch(rest):
                raise SecretError("env:", "the variable's name is malformed", "write env:NAME, e.g. env:EWR_CONNECTION")
            return cls("env", rest)
        if scheme == "file":
            path, _, key = rest.partition("#")
            if not path or "\0" in path:
                raise SecretError("file:", "the path is malformed", "write file:/path or file:/path#key")
            return cls("file", path, key)
        if scheme == "keyvault":
            vault, _, name = rest.partition("/")
            if not _VAULT_NAME.fullmatch(vault.partition(".")[0]) or not _SECRET_NAME.fullmatch(name):
                raise SecretError("keyvault:", "vault or name is malformed", "write keyvault:vault/name")
            return cls("keyvault", vault, name)
        raise SecretError(
            "connection", "this is no reference to a secret", "write env:NAME, file:/path#key or keyvault:vault/name"
        )

    def anchored(self, directory: Path) -> SecretReference:
        """The same reference with a relative file path put below `directory`."""
        if self.scheme != "file":
            return self
        return SecretReference("file", str(directory / self.location), self.key)

    def __str__(self) -> str:
        if self.scheme == "keyvault":
            return f"keyvault:{self.location}/{self.key}"
        return f"{self.scheme}:{self.location}" + (f"#{self.key}" if self.key else "")
