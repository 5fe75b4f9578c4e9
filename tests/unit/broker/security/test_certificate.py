from __future__ import annotations

import ipaddress
import socket
import ssl
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from isthmus.broker.security import certificate
from isthmus.broker.security.certificate import CertificateError, CertificateFiles, ensure_certificate, server_context
from isthmus.whole_file import write_file

NOW_MS = time.time_ns() // 1_000_000
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return ensure_certificate(tmp_path_factory.mktemp("tls"), ["broker.example", "10.1.2.3"], now_ms=NOW_MS)


def handshake(files: CertificateFiles, authority: Path, host: str) -> str | None:
    """The protocol version of a handshake in which the client trusts `authority` alone."""
    context = ssl.create_default_context(cafile=str(authority))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            with server_context(files.certificate, files.key).wrap_socket(theirs, server_side=True) as stream:
                stream.recv(1)
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with context.wrap_socket(ours, server_hostname=host) as stream:
            return stream.version()
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "broker.example", "10.1.2.3"])
def test_a_client_that_trusts_the_authority_connects(files: CertificateFiles, host: str) -> None:
    assert handshake(files, files.authority, host) == "TLSv1.3"


def test_another_name_is_refused(files: CertificateFiles) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, files.authority, "other.example")


def test_another_authority_is_refused(files: CertificateFiles, tmp_path: Path) -> None:
    other = ensure_certificate(tmp_path / "other", now_ms=NOW_MS)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, other.authority, "localhost")


def test_i1_keys_are_private(files: CertificateFiles) -> None:
    for key in files.key.parent.glob("*key.pem"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(list(files.key.parent.glob("*key.pem"))) == 2


def test_a_second_start_changes_nothing(tmp_path: Path) -> None:
    first = ensure_certificate(tmp_path, ["x.example"], now_ms=NOW_MS)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert ensure_certificate(tmp_path, ["x.example"], now_ms=NOW_MS + DAY_MS) == first
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_i2_the_authority_outlives_server_certificates(tmp_path: Path) -> None:
    files = ensure_certificate(tmp_path, now_ms=NOW_MS)
    trusted, served = files.authority.read_bytes(), files.certificate.read_bytes()
    ensure_certificate(tmp_path, ["new.example"], now_ms=NOW_MS)
    assert files.authority.read_bytes() == trusted
    assert files.certificate.read_bytes() != served
    assert handshake(files, files.authority, "new.example")
    renewed = files.certificate.read_bytes()
    ensure_certificate(tmp_path, ["new.example"], now_ms=NOW_MS + 800 * DAY_MS)
    assert files.authority.read_bytes() == trusted
    assert files.certificate.read_bytes() != renewed


def test_an_expiring_authority_is_replaced(tmp_path: Path) -> None:
    files = ensure_certificate(tmp_path, now_ms=NOW_MS - 3640 * DAY_MS)
    trusted = files.authority.read_bytes()
    ensure_certificate(tmp_path, now_ms=NOW_MS)
    assert files.authority.read_bytes() != trusted
    assert handshake(files, files.authority, "localhost")


def test_i3_an_interrupted_start_is_made_good(tmp_path: Path) -> None:
    files = ensure_certificate(tmp_path, now_ms=NOW_MS)
    for name in ("ca.pem", "ca-key.pem", "server.pem", "server-key.pem"):
        (tmp_path / name).unlink()
        (tmp_path / (name + ".new")).write_text("half")
        ensure_certificate(tmp_path, now_ms=NOW_MS)
        assert handshake(files, files.authority, "localhost")


@pytest.mark.parametrize("lost", ["ca.pem", "ca-key.pem", "server.pem", "server-key.pem"])
@pytest.mark.parametrize("writes", range(4))
def test_i3_a_start_that_is_interrupted_between_two_files_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str, writes: int
) -> None:
    files = ensure_certificate(tmp_path, now_ms=NOW_MS)
    (tmp_path / lost).unlink()
    left = list(range(writes))

    def interrupted(run: Any) -> Any:
        def either(*args: Any, **more: Any) -> Any:
            if not left:
                raise InterruptedError
            if run is write_file:
                left.pop()
            return run(*args, **more)

        return either

    with monkeypatch.context() as patch, suppress(InterruptedError):
        patch.setattr(certificate, "write_file", interrupted(write_file))
        patch.setattr(certificate, "_make_server", interrupted(certificate._make_server))
        ensure_certificate(tmp_path, now_ms=NOW_MS)
    ensure_certificate(tmp_path, now_ms=NOW_MS)
    assert handshake(files, files.authority, "localhost")
    ensure_certificate(tmp_path, ["new.example"], now_ms=NOW_MS)
    assert handshake(files, files.authority, "new.example")


def test_an_authoritys_key_under_a_passphrase_is_asked_for_only_when_needed(tmp_path: Path) -> None:
    files = ensure_certificate(tmp_path, now_ms=NOW_MS)
    key = serialization.load_pem_private_key((tmp_path / "ca-key.pem").read_bytes(), password=None)
    sealed = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "ca-key.pem").write_bytes(sealed)
    ensure_certificate(tmp_path, now_ms=NOW_MS)
    assert handshake(files, files.authority, "localhost")
    with pytest.raises(CertificateError, match=r"ca-key\.pem"):
        ensure_certificate(tmp_path, ["new.example"], now_ms=NOW_MS)
    assert handshake(files, files.authority, "localhost")


def test_names_are_what_was_asked_for(files: CertificateFiles) -> None:
    shown = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "broker.example"]
    assert ipaddress.ip_address("10.1.2.3") in names.get_values_for_type(x509.IPAddress)


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate")
    with pytest.raises(CertificateError, match=r"ca\.pem"):
        ensure_certificate(tmp_path, now_ms=NOW_MS)
    with pytest.raises(CertificateError, match=r"ca\.pem"):
        server_context(tmp_path / "ca.pem", tmp_path / "ca.pem")
