"""The namespace's own certificate.

What it is: a certificate authority and a server certificate, made at first start and kept in the data folder, so that
clients reach the namespace by TLS after trusting one file. What it is not: for certificates from elsewhere, whose files
are given to the server directly.
Spec: RFC 5280; the extensions are those that OpenSSL's strict checks (Python 3.13), Java and Go ask for.

Invariants:
    I1. Private keys are created with mode 0600 and never have a wider one.
    I2. The authority stays when server certificates change: a client that trusts it can connect after the server
        certificate was renewed or got another host name.
    I3. After an interruption at any time, the next start finds a complete pair or makes a new one.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from isthmus.errors import IsthmusError
from isthmus.store import make_private
from isthmus.whole_file import write_file

__all__ = ["LOCAL_HOST_NAMES", "CertificateError", "CertificateFiles", "ensure_certificate", "server_context"]

LOCAL_HOST_NAMES = ("localhost", "127.0.0.1", "::1")

# Apple's limit for server certificates is 825 days; the authority is valid longer than a data folder is likely to be used.
_SERVER_LIFETIME = timedelta(days=820)
_AUTHORITY_LIFETIME = timedelta(days=3650)
_RENEW_BEFORE = timedelta(days=30)
# Clients whose clocks are behind must not see a certificate that is not valid yet.
_BACKDATED = timedelta(days=1)


class CertificateError(IsthmusError):
    """A certificate file cannot be read."""

    code = "bad-certificate"

    def __init__(self, path: str = "", reason: str = "") -> None:
        super().__init__("", path=path, reason=reason)

    def text(self) -> str:
        a = self.attributes
        return (
            f"The certificate file {a.get('path')} cannot be used: {a.get('reason')}; delete it to have a new one made."
        )


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The paths of the PEM files.

    Attributes:
        authority: the authority's certificate: the file that clients trust.
        certificate: the server's certificate followed by the authority's.
        key: the server's private key, mode 0600.
    """

    authority: Path
    certificate: Path
    key: Path


def ensure_certificate(folder: Path, host_names: Iterable[str] = (), *, now_ms: int) -> CertificateFiles:
    """Makes the missing files in `folder` and renews a certificate that expires within 30 days.

    Args:
        folder: made with mode 0700 if absent.
        host_names: names and IP addresses besides localhost, 127.0.0.1 and ::1 that clients connect to.
        now_ms: wall time, milliseconds since the epoch.

    Raises:
        CertificateError: a file exists but is not a certificate or key.
    """
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    make_private(folder)
    files = CertificateFiles(folder / "ca.pem", folder / "server.pem", folder / "server-key.pem")
    authority_key_file = folder / "ca-key.pem"
    names = list(dict.fromkeys((*LOCAL_HOST_NAMES, *(name.lower() for name in host_names))))

    authority = _read(files.authority)
    if authority is None or _expires(authority, now) or not _is_key_of(authority_key_file, authority):
        authority_key = ec.generate_private_key(ec.SECP256R1())
        authority = _make_authority(authority_key, now)
        write_file(authority_key_file, _pem(authority_key))
        write_file(files.authority, authority.public_bytes(serialization.Encoding.PEM), mode=0o644)

    server = _read(files.certificate)
    if (
        server is None
        or _expires(server, now)
        or not set(names) <= _names(server)
        or not _is_key_of(files.key, server)
        or not _is_issued_by(server, authority)
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _make_server(key, authority, _read_key(authority_key_file), names, now)
        chain = b"".join(each.public_bytes(serialization.Encoding.PEM) for each in (certificate, authority))
        files.certificate.unlink(missing_ok=True)
        write_file(files.key, _pem(key))
        write_file(files.certificate, chain, mode=0o644)
    return files


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """The TLS settings of a listening port: TLS 1.2 and later.

    Raises:
        CertificateError: the files do not belong together or cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise CertificateError(str(certificate), str(error)) from error
    return context


def _make_authority(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "isthmus"),
            # A number of its own distinguishes the authorities of several data folders in a client's trust store.
            x509.NameAttribute(
                NameOID.COMMON_NAME, f"isthmus namespace authority {x509.random_serial_number():040x}"[:64]
            ),
        ]
    )
    return (
        x509.CertificateBuilder(subject_name=name, issuer_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _make_server(
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    names: list[str],
    now: datetime,
) -> x509.Certificate:
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "isthmus"),
            x509.NameAttribute(NameOID.COMMON_NAME, names[-1][:64]),
        ]
    )
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=authority.subject, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(min(now + _SERVER_LIFETIME, authority.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names(certificate: x509.Certificate) -> set[str]:
    """The host names that a certificate is for, as text."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in names}


def _expires(certificate: x509.Certificate, now: datetime) -> bool:
    return now + _RENEW_BEFORE >= certificate.not_valid_after_utc


def _read(path: Path) -> x509.Certificate | None:
    if not path.exists():
        return None
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CertificateError(str(path), str(error)) from error


def _is_key_of(path: Path, certificate: x509.Certificate) -> bool:
    """Whether a file contains the private key of a certificate; after an interrupted start it may be another's, or missing.

    An unreadable file counts as the right one: its use raises the error, and an operator may have protected the authority's
    key with a passphrase.
    """
    if not path.exists():
        return False
    try:
        return _read_key(path).public_key() == certificate.public_key()
    except CertificateError:
        return True


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:  # TypeError where a passphrase is needed
        raise CertificateError(str(path), str(error)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(str(path), "the key is not an elliptic curve key")
    return key


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
