"""Secrets by reference.

What it is: the references that files, Spark options, plans and checkpoints carry instead of secrets
(`env:NAME`, `file:/path#key`, `keyvault:vault/name`), their resolution in the process that connects, and the type that
holds a resolved secret. What it is not: a store; nothing is cached, so that a rotated secret is seen at the next
connection.

Invariants:
    I1. A `Secret` shows its value in no repr, str, format or pickle; only `reveal` gives it.
    I2. An error names the reference, never the value behind it.
    I3. `scrub` leaves no shared key, signature or password in a text.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from isthmus.errors import IsthmusError

__all__ = ["SCHEMES", "Secret", "SecretError", "SecretReference", "resolve", "scrub"]

SCHEMES = ("env", "file", "keyvault")
HIDDEN = "***"

_KEYVAULT_API_VERSION = "7.4"
_KEYVAULT_TIMEOUT_SECONDS = 10.0
_VAULT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{1,22}[A-Za-z0-9]")
_SECRET_NAME = re.compile(r"[A-Za-z0-9-]{1,127}")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_SCRUBBED = (
    re.compile(r"(?i)(SharedAccessKey\s*=\s*)[^;\s\"']+"),
    re.compile(r"(?i)(SharedAccessSignature\s*=\s*)[^;\"']+"),
    re.compile(r"(?i)(\bSharedAccessSignature\s+)sr=[^\s\"';]+"),
    re.compile(r"(?i)(\bsig=)[^&;\s\"']+"),
    re.compile(r"(?i)(\bAccountKey\s*=\s*)[^;\s\"']+"),
    re.compile(r"(?i)(\bBearer\s+)[A-Za-z0-9._~+/=-]{16,}"),
    re.compile(r"(://[^/\s:@\"']*:)[^/\s@\"']+(?=@)"),
)


class SecretError(IsthmusError):
    """A reference is malformed, or what it points to cannot be read."""

    code = "secret"

    def __init__(self, reference: str = "", reason: str = "", hint: str = "") -> None:
        super().__init__("", reference=reference, reason=reason, hint=hint)

    def text(self) -> str:
        a = self.attributes
        return f"{a.get('reference')}: {a.get('reason')}" + (f"; {a['hint']}" if a.get("hint") else "")


class Secret:
    """A secret in memory.

    It compares in constant time and refuses to be pickled: what crosses a process border is the reference.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The secret itself; call it only where it is handed to the wire."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __str__(self) -> str:
        return HIDDEN

    def __format__(self, format_spec: str) -> str:
        return HIDDEN

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled; pass its reference and resolve it where it is used")


@dataclass(frozen=True, slots=True)
class SecretReference:
    """Where a secret lies: a scheme and what that scheme needs.

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
            SecretError: the text is none of these. The text itself is not repeated: it may be a literal secret.
        """
        scheme, colon, rest = text.partition(":")
        if not colon or scheme not in SCHEMES:
            raise SecretError(
                "connection", "not a reference to a secret", "write env:NAME, file:/path#key or keyvault:vault/name"
            )
        if scheme == "env":
            if not _ENVIRONMENT_NAME.fullmatch(rest):
                raise SecretError("env:", "the variable's name is malformed", "write env:NAME, e.g. env:EWR_CONNECTION")
            return cls("env", rest)
        if scheme == "file":
            path, _, key = rest.partition("#")
            if not path:
                raise SecretError("file:", "no path is given", "write file:/path or file:/path#key")
            return cls("file", path, key)
        vault, _, name = rest.partition("/")
        host = vault.partition(".")[0]
        if not _VAULT_NAME.fullmatch(host) or not _SECRET_NAME.fullmatch(name):
            raise SecretError("keyvault:", "vault or name is malformed", "write keyvault:vault/name")
        return cls("keyvault", vault, name)

    def anchored(self, directory: Path) -> SecretReference:
        """The same reference with a relative file path made absolute below `directory`."""
        if self.scheme != "file" or Path(self.location).is_absolute():
            return self
        return SecretReference("file", str((directory / self.location).absolute()), self.key)

    def __str__(self) -> str:
        if self.scheme == "keyvault":
            return f"keyvault:{self.location}/{self.key}"
        return f"{self.scheme}:{self.location}" + (f"#{self.key}" if self.key else "")

    def resolve(self, environment: Mapping[str, str] | None = None) -> Secret:
        """Fetch the secret; blocks on disk or network.

        Raises:
            SecretError: nothing stands there, or it cannot be read.
        """
        if self.scheme == "env":
            value = (os.environ if environment is None else environment).get(self.location, "")
            if not value:
                raise SecretError(str(self), "the environment variable is not set", f"export {self.location}=…")
            return Secret(value)
        if self.scheme == "file":
            return Secret(self._read_file())
        return Secret(_read_keyvault(self, _fetch_json))

    def _read_file(self) -> str:
        try:
            text = Path(self.location).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise SecretError(str(self), f"the file cannot be read ({reason})") from None
        if not self.key:
            value = text.strip()
        elif text.lstrip().startswith("{"):
            value = self._field_of_json(text)
        else:
            value = self._field_of_lines(text)
        if not value:
            raise SecretError(
                str(self), "the file holds no such key or an empty value", "write a JSON object or KEY=value lines"
            )
        return value

    def _field_of_json(self, text: str) -> str:
        try:
            found = json.loads(text).get(self.key, "")
        except ValueError:
            raise SecretError(str(self), "the file starts as JSON but is malformed") from None
        return found if isinstance(found, str) else ""

    def _field_of_lines(self, text: str) -> str:
        for line in text.splitlines():
            name, equals, value = line.removeprefix("export ").partition("=")
            if equals and name.strip() == self.key:
                value = value.strip()
                quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
                return value[1:-1] if quoted else value
        return ""


def resolve(reference: str) -> Secret:
    """The secret behind a reference's text.

    Raises:
        SecretError: the reference is malformed or leads nowhere.
    """
    return SecretReference.parse(reference).resolve()


def scrub(text: str) -> str:
    """The text without the secrets that connection strings, tokens and URLs hold."""
    for pattern in _SCRUBBED:
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text


def _read_keyvault(reference: SecretReference, fetch: Callable[[str, str], Any]) -> str:
    """GET the secret's current version from the vault's data plane, as the default Azure identity."""
    host = reference.location if "." in reference.location else f"{reference.location}.vault.azure.net"
    url = f"https://{host}/secrets/{reference.key}?api-version={_KEYVAULT_API_VERSION}"
    scope = f"https://{host.partition('.')[2]}/.default"
    try:
        answer = fetch(url, scope)
    except urllib.error.HTTPError as error:
        raise SecretError(str(reference), f"the vault answered {error.code} {error.reason}") from None
    except OSError as error:
        raise SecretError(str(reference), f"the vault cannot be reached ({error})") from None
    value = answer.get("value") if isinstance(answer, dict) else None
    if not isinstance(value, str) or not value:
        raise SecretError(str(reference), "the vault answered without a value")
    return value


def _fetch_json(url: str, scope: str) -> Any:
    from azure.core.exceptions import ClientAuthenticationError  # noqa: PLC0415 - an SDK is loaded only where it is used
    from azure.identity import DefaultAzureCredential  # noqa: PLC0415 - see above

    try:
        token = DefaultAzureCredential().get_token(scope).token
    except ClientAuthenticationError:
        raise OSError("no Azure identity on this machine; az login, or a managed identity") from None
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=_KEYVAULT_TIMEOUT_SECONDS) as response:
        return json.load(response)
