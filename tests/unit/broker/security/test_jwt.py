"""Web tokens: every reason for which one is refused, and the rights of a valid one."""

import base64
import json
import os

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from isthmus.broker.security.authority import Authority
from isthmus.broker.security.grant import Right
from isthmus.broker.security.jwt import Issuer
from isthmus.broker.security.jwt_setting import JwtSettings
from isthmus.broker.security.keyring import Keyring
from isthmus.broker.security.sas import TokenError
from isthmus.entities.catalog.description import AuthorizationRule
from isthmus.errors import ConfigError

NOW = 1_700_000_000
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
WEAK = rsa.generate_private_key(65537, 1024)
ISSUER, AUDIENCE = "https://issuer.example/", "https://servicebus.azure.net"


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value, size=0):
    return b64(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


def jwk(key, kid):
    numbers = key.public_key().public_numbers()
    if isinstance(key, rsa.RSAPrivateKey):
        return {"kty": "RSA", "kid": kid, "use": "sig", "n": number(numbers.n), "e": number(numbers.e)}
    return {"kty": "EC", "crv": "P-256", "kid": kid, "x": number(numbers.x, 32), "y": number(numbers.y, 32)}


def pem(key):
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def sign(key, data):
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PKCS1v15(), SHA256())
    r, s = decode_dss_signature(key.sign(data, ec.ECDSA(SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def make(key=RSA, *, header=None, signature=None, **claims):
    algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
    head = {"alg": algorithm, "typ": "JWT", **(header or {})}
    body = {"iss": ISSUER, "aud": AUDIENCE, "exp": NOW + 600, "sub": "app", "roles": ["Send"], **claims}
    body = {name: value for name, value in body.items() if value is not ...}
    text = f"{b64(json.dumps(head).encode())}.{b64(json.dumps(body).encode())}"
    return f"{text}.{b64(sign(key, text.encode()) if signature is None else signature)}"


@pytest.fixture
def issuer(tmp_path):
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [jwk(RSA, "r"), jwk(EC, "e"), jwk(WEAK, "w"), {"kty": "oct", "k": "AA"}]}))
    return Issuer(JwtSettings(ISSUER, file))


@pytest.mark.parametrize("key", [RSA, EC], ids=["RS256", "ES256"])
@pytest.mark.parametrize("kid", [None, "right"])
def test_a_good_token_is_taken(issuer, key, kid):
    header = {"kid": "r" if key is RSA else "e"} if kid else {}
    claims = issuer.check(make(key, header=header), NOW * 1000)
    assert claims == ("app", {Right.SEND}, (NOW + 600) * 1000)


@pytest.mark.parametrize("key", [RSA, EC], ids=["RS256", "ES256"])
def test_a_key_in_pem_is_taken(tmp_path, key):
    file = tmp_path / "key.pem"
    file.write_bytes(pem(key))
    assert Issuer(JwtSettings(ISSUER, file)).check(make(key, header={"kid": "any"}), NOW * 1000).subject == "app"


BAD = {
    "another key": (make(rsa.generate_private_key(65537, 2048)), "InvalidSignature"),
    "a weak key": (make(WEAK, header={"kid": "w"}), "InvalidSignature"),
    "the key of another name": (make(RSA, header={"kid": "e"}), "InvalidSignature"),
    "no algorithm": (make(header={"alg": "none"}, signature=b""), "InvalidSignature"),
    "HS256 with the public key": (make(header={"alg": "HS256"}, signature=pem(RSA)), "InvalidSignature"),
    "ES256 over an RSA key": (make(header={"alg": "ES256"}), "InvalidSignature"),
    "ES256 in DER": (make(EC, signature=EC.sign(b"x", ec.ECDSA(SHA256()))), "InvalidSignature"),
    "ES256 of zeros": (make(EC, signature=bytes(64)), "InvalidSignature"),
    "an extension that must be understood": (make(header={"crit": ["x"], "x": 1}), "InvalidSignature"),
    "another issuer": (make(iss="https://other/"), "InvalidIssuer"),
    "no issuer": (make(iss=...), "InvalidIssuer"),
    "another audience": (make(aud="https://other"), "InvalidAudience"),
    "no audience": (make(aud=...), "InvalidAudience"),
    "an audience that is no text": (make(aud={"a": 1}), "InvalidAudience"),
    "audiences that are no texts": (make(aud=[["a"], {}]), "InvalidAudience"),
    "a header of no text": ("\udcff.e30.", "MalformedToken"),
    "a signature of no text": (make() + "\udcff", "MalformedToken"),
    "an expired one": (make(exp=NOW), "ExpiredToken"),
    "one without an end": (make(exp=...), "MalformedToken"),
    "one that ends as text": (make(exp=str(NOW + 5)), "MalformedToken"),
    "one of tomorrow": (make(nbf=NOW + 86_400), "MalformedToken"),
    "no token": ("abc", "MalformedToken"),
    "two parts": ("a.b", "MalformedToken"),
    "no base64": ("a!.b.c", "MalformedToken"),
    "a list for a header": (f"{b64(b'[]')}.{b64(b'{}')}.", "MalformedToken"),
    "a deep header": (f"{b64(b'[' * 9000)}.e30.", "MalformedToken"),
    "a long one": ("a" * 20_000, "MalformedToken"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_with_a_token_is_reported_and_nothing_of_it_i1_i2_i3(issuer, case):
    token, reason = BAD[case]
    with pytest.raises(TokenError) as caught:
        issuer.check(token, NOW * 1000)
    assert str(caught.value).startswith(f"{reason}: ")
    assert "other" not in str(caught.value)


@pytest.mark.parametrize(
    ("roles", "rights"),
    [
        (["Send", "Listen"], {Right.SEND, Right.LISTEN}),
        (["Azure Service Bus Data Owner"], set(Right)),
        ("Azure Service Bus Data Receiver", {Right.LISTEN}),
        ("send manage", set(Right)),
        (["Reader", 7], set()),
        (..., set()),
        ({"Send": True}, set()),
    ],
)
def test_roles_become_rights(issuer, roles, rights):
    assert issuer.check(make(roles=roles), NOW * 1000).rights == rights


def test_one_of_several_audiences_is_enough(issuer):
    assert issuer.check(make(aud=["https://x", AUDIENCE]), NOW * 1000).subject == "app"


def test_the_grant_reaches_as_far_as_its_audience_and_ends_with_the_token(issuer):
    authority = Authority(Keyring([AuthorizationRule("r", "a", "b", ["Send"])]), issuer=issuer)
    for token in (make(), f"Bearer {make()}"):
        grant = authority.authorise_token(token, "sb://host/orders", NOW * 1000)
        assert grant.covers("orders/$management", Right.SEND)
        assert not grant.covers("orders", Right.LISTEN)
        assert not grant.covers("orders-secret", Right.SEND)
        assert grant.is_expired((NOW + 600) * 1000)
        assert authority.is_current(grant)


def test_keys_are_read_again_when_their_file_changes(tmp_path):
    file = tmp_path / "keys.pem"
    file.write_bytes(pem(RSA))
    issuer = Issuer(JwtSettings(ISSUER, file))
    assert not issuer.refresh()
    file.write_bytes(pem(EC))
    os.utime(file, (1, 1))
    assert issuer.refresh()
    assert issuer.check(make(EC), NOW * 1000).subject == "app"
    with pytest.raises(TokenError):
        issuer.check(make(RSA), NOW * 1000)
    file.write_text("nonsense")
    with pytest.raises(ConfigError, match=r"keys\.pem"):
        issuer.refresh()
    assert issuer.check(make(EC), NOW * 1000).subject == "app"


@pytest.mark.parametrize("content", [b"", b"{", b'{"keys": []}', b'{"keys": [{"kty": "RSA"}]}', b'{"keys": 3}',
                                     b'{"keys": [{"kty": "EC", "crv": "P-256", "x": "AQ", "y": "AQ"}]}', pem(WEAK)])  # fmt: skip
def test_a_file_without_a_key_is_refused(tmp_path, content):
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(ConfigError):
        Issuer(JwtSettings(ISSUER, file))


def test_no_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="absent"):
        Issuer(JwtSettings(ISSUER, tmp_path / "absent"))
