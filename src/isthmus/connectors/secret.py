"""The resolution of secrets.

What it is: the resolution of references (`isthmus.topology.file.reference`) in the process that connects, the type of a
resolved secret, and the scrubbing of texts. What it is not: a store; nothing is cached, so that a rotated secret is
used by the next connection.

Invariants:
    I1. A `Secret` shows its value in no repr, str, format or pickle; only `reveal` gives it.
    I2. An error names the reference, never the value behind it.
    I3. `scrub` leaves no shared key, signature or password in a text.
    I4. A vault that answers with Retry-After (RFC 9110, 10.2.3) is not called before that, but again after `LONGEST_WAIT_SECONDS` at most.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from isthmus.extra import MissingExtraError, require
from isthmus.topology.file.reference import SecretError, SecretReference

__all__ = ["Secret", "SecretError", "SecretReference", "SecretUnavailableError", "resolve", "scrub"]

HIDDEN = "***"

_KEYVAULT_TIMEOUT_SECONDS = 10.0
# A proxy in maintenance names an hour.
LONGEST_WAIT_SECONDS = 60.0

_call_at: dict[str, float] = {}  # by vault, monotonic seconds


class SecretUnavailableError(SecretError):
    """A vault does not answer now; it may answer later."""

    code = "secret-unavailable"
    retryable = True


_SCRUBBED = (
    re.compile(r"(?i)(SharedAccessKey\s*=\s*)[^;\s\"']+"),
    re.compile(r"(?i)(SharedAccessSignature\s*=\s*)[^;\"']+"),
    re.compile(r"(?i)(\bSharedAccessSignature\s+)sr=[^\s\"';]+"),
    re.compile(r"(?i)(\bsig=)[^&;\s\"']+"),
    re.compile(r"(?i)(\bAccountKey\s*=\s*)[^;\s\"']+"),
    re.compile(r"(?i)(\bBearer\s+)[A-Za-z0-9._~+/=-]{16,}"),
    re.compile(r"(://[^/\s:@\"']*:)[^/\s@\"']+(?=@)"),
)


class Secret:
    """A secret in memory.

    It compares in constant time and refuses to be pickled: only its reference is passed between processes.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The secret itself; call it only where the value is sent."""
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


def resolve(reference: str | SecretReference, environment: Mapping[str, str] | None = None) -> Secret:
    """Fetches the secret that a reference names; blocks on disk or network.

    Args:
        reference: `env:NAME`, `file:/path#key` (a JSON object or KEY=value lines; without key the whole file) or
            `keyvault:vault/name` (read with the default Azure identity).
        environment: variables to use; the process's own by default.

    Raises:
        SecretError: the reference is malformed or cannot be resolved.
        SecretUnavailableError: the vault does not answer now.
    """
    where = SecretReference.parse(reference) if isinstance(reference, str) else reference
    if where.scheme == "env":
        return Secret(_read_variable(where, os.environ if environment is None else environment))
    if where.scheme == "file":
        return Secret(_read_file(where))
    return Secret(_read_keyvault(where, _ask_vault))


def scrub(text: str) -> str:
    """The text without the secrets of connection strings, tokens and URLs."""
    for pattern in _SCRUBBED if text else ():
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text


def _trimmed(text: str) -> str:
    """Removes what editors and `echo` add to a secret and no password contains: a byte order mark, and trailing line ends."""
    return text.removeprefix("\ufeff").rstrip("\r\n")


def _read_variable(where: SecretReference, environment: Mapping[str, str]) -> str:
    value = _trimmed(environment.get(where.location, ""))
    if not value:
        raise SecretError(str(where), "the environment variable is not set", f"export {where.location}=…")
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes that are not text
        raise SecretError(str(where), "the environment variable is not UTF-8 text") from None
    return value


def _read_file(where: SecretReference) -> str:
    try:
        text = Path(where.location).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise SecretError(str(where), f"the file cannot be read ({reason})") from None
    if not where.key:
        value = text.strip()
    elif text.lstrip().startswith("{"):
        value = _field_of_json(where, text)
    else:
        value = _field_of_lines(where.key, text)
    if not value:
        raise SecretError(
            str(where), "the file has no such key or an empty value", "write a JSON object or KEY=value lines"
        )
    return value


def _field_of_json(where: SecretReference, text: str) -> str:
    try:
        found = json.loads(text).get(where.key, "")
    except ValueError:
        raise SecretError(str(where), "the file starts as JSON but is malformed") from None
    return found if isinstance(found, str) else ""


def _field_of_lines(key: str, text: str) -> str:
    for line in text.splitlines():
        name, _, value = line.strip().removeprefix("export ").partition("=")
        if name.strip() == key:
            value = value.strip()
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            return value[1:-1] if quoted else value
    return ""


def _read_keyvault(
    where: SecretReference, ask: Callable[[str, str], str | None], clock: Callable[[], float] = time.monotonic
) -> str:
    """Reads the secret's current version with the vault's own client."""
    from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError

    from isthmus.connectors.http.client import retry_after
    from isthmus.transport.credential import told_of_token
    from isthmus.transport.http_status import may_succeed_later

    host = where.location if "." in where.location else f"{where.location}.vault.azure.net"
    if (wait := _call_at.get(host, 0.0) - clock()) > 0.0:
        raise SecretUnavailableError(str(where), f"the vault is busy, and asks to wait {math.ceil(wait)} s more")
    try:
        value = _trimmed(ask(f"https://{host}", where.key) or "")
    except HttpResponseError as error:
        status = error.status_code
        if status is None and isinstance(error, ClientAuthenticationError):  # the vault was not called
            text = f"the vault cannot be read (no token for it: {told_of_token(error)})"
            raise SecretUnavailableError(str(where), text) from None
        kind = SecretUnavailableError if status is None or may_succeed_later(status) else SecretError
        said = str(error.message or "").partition("\n")[0].strip()
        why = f": {scrub(said)}" if said and said != error.reason else ""
        wait = min(
            retry_after({"retry-after": getattr(error.response, "headers", {}).get("Retry-After", "")}),
            LONGEST_WAIT_SECONDS,
        )
        again = ""
        if kind is SecretUnavailableError and wait:
            _call_at[host] = clock() + wait
            again = f"; it asks to wait {math.ceil(wait)} s"
        raise kind(str(where), f"the vault answered {status} {error.reason}{why}{again}") from None
    except (AzureError, OSError, ValueError) as error:
        text = str(getattr(error, "message", "") or error) or type(error).__name__
        raise SecretUnavailableError(str(where), f"the vault cannot be read ({scrub(text)})") from None
    if not value:
        raise SecretError(str(where), "the vault answered without a value")
    return value


def _ask_vault(vault_url: str, name: str) -> str | None:
    require("azure", "a secret from a key vault")
    try:
        from azure.keyvault.secrets import SecretClient
    except ImportError:  # an installation from before the package was part of the extra
        missing = ("azure.keyvault.secrets",)
        raise MissingExtraError(what="a secret from a key vault", extra="azure", missing=missing) from None
    from isthmus.connectors.identity import shared_credential  # a module that resolves secrets itself
    from isthmus.connectors.sdk_transport import SdkTransport

    # One attempt: the caller decides on the next one.
    client = SecretClient(
        vault_url,
        shared_credential("default"),
        retry_total=0,
        transport=SdkTransport(connection_timeout=_KEYVAULT_TIMEOUT_SECONDS, read_timeout=_KEYVAULT_TIMEOUT_SECONDS),
    )
    with client:
        return client.get_secret(name).value
