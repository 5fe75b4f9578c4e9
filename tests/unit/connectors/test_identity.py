"""isthmus.connectors.identity: one credential for each identity, and secrets that are replaced."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import azure.identity
import azure.keyvault.secrets
import pytest
from azure.core.pipeline.transport import HttpRequest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from isthmus.connectors import identity as module
from isthmus.connectors.identity import ANSWER_SECONDS, REREAD_SECONDS, RotatingCredential, shared_credential
from isthmus.connectors.secret import SecretError, resolve
from isthmus.errors import ConfigError
from isthmus.topology.identity import IdentityReference

WAITS = ("transport", "retry_total")


class Fake:
    """A credential that gives what it was made of as its token."""

    made: list[tuple[Any, ...]] = []  # noqa: RUF012 - emptied by the fixture

    waits: list[dict[str, Any]] = []  # noqa: RUF012 - the same

    def __init__(self, *values: Any, **named: Any) -> None:
        self.values = (*values, *sorted(each for each in named.items() if each[0] not in WAITS))
        Fake.made.append(self.values)
        Fake.waits.append({name: named[name] for name in WAITS if name in named})

    def get_token(self, *scopes: str, **options: Any) -> Any:
        return (self.values, scopes)


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    Fake.made, Fake.waits = [], []
    monkeypatch.setattr(module, "_shared", {})
    for name in ("Default", "Managed", "Workload", "ClientSecret"):
        suffix = {"Default": "AzureCredential", "ClientSecret": "Credential"}.get(name, "IdentityCredential")
        monkeypatch.setattr(azure.identity, name + suffix, Fake)
    monkeypatch.setattr(azure.identity, "AzureCliCredential", Fake)


def test_a_process_has_one_credential_for_an_identity() -> None:
    first, second = shared_credential("managed;client_id=c"), shared_credential("managed;client_id=c")
    assert first is second
    assert shared_credential("managed") is not first
    assert Fake.made == [(("client_id", "c"),), ()]
    assert first.get_token("scope") == ((("client_id", "c"),), ("scope",))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("default", ()),
        ("workload;tenant=t;client_id=c", (("client_id", "c"), ("tenant_id", "t"))),
        ("cli;tenant=t", (("tenant_id", "t"),)),
    ],
)
def test_each_kind_is_made_of_its_settings(text: str, values: tuple[Any, ...]) -> None:
    shared_credential(text)
    assert Fake.made == [values]


@pytest.mark.parametrize("text", ["default", "managed", "workload;tenant=t;client_id=c"])
def test_i3_who_issues_tokens_has_a_time_to_answer(text: str) -> None:
    """Otherwise a token service that hangs delays each connection for 300 s, and each retry again; and the reported error is not the cause."""
    shared_credential(text)
    [waits] = Fake.waits
    assert waits["transport"].connection_config.read_timeout == ANSWER_SECONDS
    assert waits["retry_total"] == 0


def test_i5_no_password_of_netrc_goes_to_who_issues_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("default login anonymous password guest\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    shared_credential("managed")
    assert "Authorization" not in shown_by(Fake.waits[0]["transport"], {})


def shown_by(transport: Any, headers: dict[str, str]) -> dict[str, str]:
    """The headers with which a transport sends a request."""
    seen: list[Any] = []

    def send(prepared: Any, **_: Any) -> None:
        seen.append(prepared)
        raise EOFError

    with transport:
        transport.session.send = send
        with pytest.raises(EOFError):
            transport.send(HttpRequest("GET", "http://token.test", headers=headers))
    return dict(seen[0].headers)


def test_no_password_of_netrc_goes_to_a_vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("default login anonymous password guest\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    made: list[Any] = []

    class Vault:
        def __init__(self, url: str, credential: Any, *, transport: Any, **_: Any) -> None:
            made.append(transport)
            raise OSError("enough")

    monkeypatch.setattr(azure.keyvault.secrets, "SecretClient", Vault)
    with pytest.raises(SecretError, match="enough"):
        resolve("keyvault:contoso/app")
    assert shown_by(made[0], {"Authorization": "Bearer token"})["Authorization"] == "Bearer token"


def test_i4_a_secret_may_be_in_a_vault_that_another_identity_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    class Vault:
        def __init__(self, url: str, credential: Any, **_: Any) -> None:
            assert credential.get_token("s") == ((), ("s",))

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def get_secret(self, name: str) -> Any:
            return SimpleNamespace(value="one")

    monkeypatch.setattr(azure.keyvault.secrets, "SecretClient", Vault)
    identity = IdentityReference(kind="client-secret", tenant="t", client_id="c", client_secret="keyvault:contoso/app")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(shared_credential(identity)), daemon=True)
    thread.start()
    thread.join(10.0)
    assert not thread.is_alive()
    assert found[0].get_token("s")[0] == ("t", "c", "one")


def test_a_secret_that_was_replaced_is_used_without_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1."""
    now = 0.0
    monkeypatch.setenv("APP_SECRET", "one")
    reference = IdentityReference(kind="client-secret", tenant="t", client_id="c", client_secret="env:APP_SECRET")
    made = RotatingCredential(reference, lambda: now)
    assert made.get_token("s")[0] == ("t", "c", "one")
    monkeypatch.setenv("APP_SECRET", "two")
    assert made.get_token("s")[0] == ("t", "c", "one")
    now = REREAD_SECONDS
    assert made.get_token("s")[0] == ("t", "c", "two")
    now += REREAD_SECONDS
    made.get_token("s")
    assert len(Fake.made) == 2, "an unchanged secret keeps the credential and its cached tokens"
    monkeypatch.delenv("APP_SECRET")
    now += REREAD_SECONDS
    assert made.get_token("s")[0] == ("t", "c", "two"), "a secret that cannot be read now: the last one"


def test_a_secret_that_leads_nowhere_is_reported_by_its_reference() -> None:
    """I2."""
    with pytest.raises(SecretError, match="env:NOWHERE"):
        shared_credential("client-secret;tenant=t;client_id=c;client_secret=env:NOWHERE")


def test_a_file_that_is_no_certificate_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "app.pem"
    text = f"client-certificate;tenant=t;client_id=c;certificate_file={path}"
    with pytest.raises(ConfigError, match="cannot be read"):
        shared_credential(text)
    path.write_text("nothing")
    with pytest.raises(ConfigError, match="no certificate with an RSA private key"):
        shared_credential(text)


def test_a_key_with_a_password_is_reported(tmp_path: Path) -> None:
    """The SDK raises a TypeError, which was taken for a fault that passes."""
    private = rsa.generate_private_key(65537, 2048).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hunter2")
    )
    (tmp_path / "app.pem").write_bytes(private)
    with pytest.raises(ConfigError, match="the key has a password"):
        shared_credential(f"client-certificate;tenant=t;client_id=c;certificate_file={tmp_path / 'app.pem'}")


def test_a_tenant_that_can_be_none_is_a_fault_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("Invalid tenant ID provided.")

    monkeypatch.setattr(azure.identity, "AzureCliCredential", refuse)
    with pytest.raises(ConfigError, match="identity cli: Invalid tenant ID provided"):
        shared_credential("cli;tenant=my tenant")


def test_a_certificate_makes_a_credential(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "isthmus")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "both.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(certificate.public_bytes(Encoding.PEM) + private)
    found = shared_credential(f"client-certificate;tenant=t;client_id=c;certificate_file={path}")
    assert isinstance(found, RotatingCredential)
