from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ServiceRequestError
from hypothesis import given
from hypothesis import strategies as st

from isthmus.connectors.secret import (
    Secret,
    SecretError,
    SecretReference,
    SecretUnavailableError,
    _read_keyvault,
    resolve,
    scrub,
)

KEY = "bm90LWEta2V5LWJ1dC1sb25n"


def test_i1_a_secret_shows_nowhere() -> None:
    secret = Secret(KEY)
    assert KEY not in f"{secret} {secret!r} {secret!s} {[secret]} {secret:>40}"
    assert secret.reveal() == KEY
    with pytest.raises(TypeError, match="reference"):
        pickle.dumps(secret)


def test_secrets_compare_by_value() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a")}) == 1
    assert Secret("a") != "a"
    assert not Secret("")


@pytest.mark.parametrize(
    "text",
    [
        "env:EWR_CONNECTION",
        "file:/run/secrets/ewr",
        "file:/a#b",
        "keyvault:contoso/ewr-1",
        "keyvault:a1b.vault.azure.cn/x",
    ],
)
def test_references_are_written_as_they_are_read(text: str) -> None:
    assert str(SecretReference.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", KEY, "env:", "env:1A", "env:A B", "file:", "keyvault:x", "keyvault:contoso/", f"vault:{KEY}", f"env:{KEY}="],
)
def test_a_malformed_reference_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(SecretError) as raised:
        SecretReference.parse(text)
    assert KEY not in str(raised.value)
    assert raised.value.hint
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_TEST_KEY", KEY)
    assert resolve("env:ISTHMUS_TEST_KEY") == Secret(KEY)
    assert resolve("env:A", {"A": "b"}) == Secret("b")
    with pytest.raises(SecretError, match="env:B: the environment variable is not set; export B="):
        resolve("env:B", {"A": "b"})


@pytest.mark.parametrize("value", [f"{KEY}\n", f"{KEY}\r\n", f"\ufeff{KEY}"])
def test_what_echo_and_editors_put_around_a_secret_is_no_part_of_it(value: str) -> None:
    """A password with a line end after it is refused by every system, each with another error."""
    assert resolve("env:A", {"A": value}) == Secret(KEY)
    assert _read_keyvault(SecretReference.parse("keyvault:contoso/ewr"), lambda *_: value) == KEY


def test_a_space_may_be_part_of_a_password() -> None:
    assert resolve("env:A", {"A": " x "}) == Secret(" x ")


def test_a_variable_of_bytes_that_are_no_text_is_refused() -> None:
    with pytest.raises(SecretError, match="env:A: the environment variable is not UTF-8 text") as raised:
        resolve("env:A", {"A": f"{KEY}\udce9"})
    assert KEY not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (f"{KEY}\n", ""),
        (f"\ufeff{KEY}\r\n", ""),
        (f'\ufeff{{"connection": "{KEY}"}}', "#connection"),
        (f"\ufeffconnection={KEY}\r\n", "#connection"),
        (json.dumps({"connection": KEY, "other": 1}), "#connection"),
        (f"# keys\nother=1\nconnection={KEY}==\n", "#connection"),
        (f"export connection='{KEY}'\n", "#connection"),
    ],
)
def test_file(tmp_path: Path, content: str, key: str) -> None:
    file = tmp_path / "secret"
    file.write_text(content)
    assert resolve(f"file:{file}{key}").reveal().startswith(KEY)


@pytest.mark.parametrize("content", ["", "{broken", '{"connection": 7}', "other=1", "connection="])
def test_a_file_without_the_key_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "secret"
    file.write_text(content)
    with pytest.raises(SecretError, match="secret#connection"):
        resolve(f"file:{file}#connection")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match="No such file"):
        resolve(f"file:{tmp_path}/none")


def test_keyvault_asks_the_vault_of_its_own_cloud() -> None:
    asked: list[tuple[str, str]] = []

    def ask(url: str, name: str) -> str:
        asked.append((url, name))
        return KEY

    assert _read_keyvault(SecretReference.parse("keyvault:contoso/ewr"), ask) == KEY
    assert _read_keyvault(SecretReference.parse("keyvault:contoso.vault.azure.cn/ewr"), ask) == KEY
    assert asked == [("https://contoso.vault.azure.net", "ewr"), ("https://contoso.vault.azure.cn", "ewr")]


DISABLED = "(Forbidden) Operation get is not allowed on a disabled secret."


def answered(status: int, reason: str, said: str = "no") -> HttpResponseError:
    error = HttpResponseError(f"{said}\nCode: Forbidden")
    error.status_code, error.reason = status, reason
    return error


# As `DefaultAzureCredential` does.
_CHAIN = """DefaultAzureCredential failed to retrieve a token from the included credentials.
Attempted credentials:
\tEnvironmentCredential: %s
\tManagedIdentityCredential: ManagedIdentityCredential authentication unavailable, no response from the IMDS endpoint.
\tAzureCliCredential: Azure CLI not found on path
\tAzurePowerShellCredential: PowerShell is not installed
\tAzureDeveloperCliCredential: Azure Developer CLI could not be found. Please visit https://aka.ms/azure-dev for installation instructions
\tBrokerCredential: InteractiveBrowserBrokerCredential unavailable. The 'azure-identity-broker' package is required.
To mitigate this issue, please refer to the troubleshooting guidelines here at https://aka.ms/azsdk/python/identity."""
AWAY = _CHAIN % "Authentication failed: login.microsoftonline.com: connection refused"
NO_IDENTITY = (
    _CHAIN % "EnvironmentCredential authentication unavailable. Environment variables are not fully configured."
)


@pytest.mark.parametrize(
    ("error", "message", "retryable"),
    [
        (answered(403, "Forbidden"), "answered 403 Forbidden", False),
        (answered(403, "Forbidden", DISABLED), f"answered 403 Forbidden: {DISABLED}", False),
        (answered(404, "Not Found"), "answered 404 Not Found", False),
        (answered(429, "Too Many Requests"), "answered 429", True),
        (answered(503, "Service Unavailable"), "answered 503", True),
        (ClientAuthenticationError("no identity"), "cannot be read (no token for it: no identity)", True),
        (ClientAuthenticationError(AWAY), "cannot be read (no token for it: EnvironmentCredential: Authent", True),
        (ClientAuthenticationError(NO_IDENTITY), "cannot be read (no token for it: no Azure identity on this", True),
        (ServiceRequestError("no route"), "cannot be read (no route)", True),
        (OSError("no route"), "cannot be read (no route)", True),
        (None, "answered without a value", False),
    ],
)
def test_keyvault_that_gives_nothing_is_named(error: Exception | None, message: str, retryable: bool) -> None:
    def ask(url: str, name: str) -> str | None:
        if error:
            raise error
        return None

    with pytest.raises(SecretError, match=re.escape(f"keyvault:contoso/ewr: the vault {message}")) as raised:
        _read_keyvault(SecretReference.parse("keyvault:contoso/ewr"), ask)
    assert raised.value.retryable is retryable


def test_i4_a_vault_is_not_asked_before_the_time_that_it_names() -> None:
    now, asked = [100.0], list[str]()
    busy = answered(429, "Too Many Requests")
    busy.response = SimpleNamespace(headers={"Retry-After": "20"})

    def ask(url: str, name: str) -> str:
        asked.append(url.removeprefix("https://").partition(".")[0])
        if now[0] < 120.0 and asked[-1] == "busy":
            raise busy
        return KEY

    def read(vault: str, name: str = "ewr") -> str:
        return _read_keyvault(SecretReference.parse(f"keyvault:{vault}/{name}"), ask, lambda: now[0])

    with pytest.raises(SecretUnavailableError, match=r"answered 429 Too Many Requests: no; it asks to wait 20 s"):
        read("busy")
    now[0] = 119.0
    with pytest.raises(SecretUnavailableError, match=r"busy/jfk: the vault is busy, and asks to wait 1 s more"):
        read("busy", "jfk")
    assert read("idle") == KEY
    now[0] = 120.0
    assert read("busy", "jfk") == KEY
    assert asked == ["busy", "idle", "busy"]


def test_i4_a_vault_is_asked_again_within_a_minute_whatever_time_it_names() -> None:
    """A proxy in maintenance names an hour."""
    now = [100.0]
    away = answered(503, "Service Unavailable")
    away.response = SimpleNamespace(headers={"Retry-After": "3600"})

    def ask(url: str, name: str) -> str:
        if now[0] < 160.0:
            raise away
        return KEY

    for now[0], text in ((100.0, "wait 60 s"), (159.0, "wait 1 s more")):
        with pytest.raises(SecretUnavailableError, match=text):
            _read_keyvault(SecretReference.parse("keyvault:away/ewr"), ask, lambda: now[0])
    now[0] = 160.0
    assert _read_keyvault(SecretReference.parse("keyvault:away/ewr"), ask, lambda: now[0]) == KEY


@pytest.mark.parametrize(
    "text",
    [
        f"Endpoint=sb://h/;SharedAccessKeyName=Root;SharedAccessKey={KEY}=;EntityPath=q",
        f"sharedaccesskey = {KEY}",
        f"SharedAccessSignature=SharedAccessSignature sr=sb%3a%2f%2fh&sig={KEY}%3d&se=1&skn=Root",
        f"Authorization: SharedAccessSignature sr=x&sig={KEY}&se=1",
        f"Bearer eyJ{KEY}.{KEY}.{KEY}",
        f"amqps://Root:{KEY}@h/",
        f"DefaultEndpointsProtocol=https;AccountKey={KEY}==;",
    ],
)
def test_i3_scrub_hides_what_is_secret(text: str) -> None:
    assert KEY not in scrub(text)
    assert scrub(scrub(text)) == scrub(text)


@given(st.text(max_size=100))
def test_scrub_takes_any_text(text: str) -> None:
    scrub(text)
