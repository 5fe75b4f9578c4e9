from __future__ import annotations

import base64
import hashlib
import hmac
import pickle
from urllib.parse import quote, quote_plus, unquote

import pytest
from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from hypothesis import given
from hypothesis import strategies as st

from isthmus.broker.security.sas import (
    ExpiredTokenError,
    InvalidAudienceError,
    InvalidSignatureError,
    MalformedTokenError,
    SasToken,
    canonical_path,
    covers,
    make_token,
    parents,
    sign,
)

KEY = base64.b64encode(b"k" * 32).decode()
EXPIRY_MS = 1_800_000_000_000


def test_reads_what_it_makes() -> None:
    token = SasToken.parse(make_token("sb://host:5671/orders", "Root", KEY, EXPIRY_MS))
    assert (token.key_name, token.expires_at_ms, token.resource) == (
        "Root",
        EXPIRY_MS,
        "sb%3A%2F%2Fhost%3A5671%2Forders",
    )
    assert token.is_signed_by(KEY)
    assert not token.is_signed_by(KEY + "x")


def test_reads_the_official_client_s_token() -> None:
    token = SasToken.parse(ServiceBusSharedKeyCredential("Root", KEY).get_token("sb://localhost:5672/queue").token)
    assert token.is_signed_by(KEY)
    assert canonical_path(unquote(token.resource)) == "queue"


def test_takes_fields_in_any_order() -> None:
    made = make_token("sb://host/q", "Root", KEY, EXPIRY_MS)
    head, _, fields = made.partition(" ")
    turned = f"{head} {'&'.join(reversed(fields.split('&')))}"
    assert SasToken.parse(turned) == SasToken.parse(made)


def test_signs_the_resource_exactly_as_received() -> None:
    # JavaScript lower-cases the escapes, others leave them upper; either signs what it sends.
    for resource in ("https%3a%2f%2fhost%2fq", "https%3A%2F%2Fhost%2Fq", "https://host/q"):
        signature = quote_plus(sign(KEY, resource, "1800000000"))
        token = SasToken.parse(f"SharedAccessSignature sr={resource}&sig={signature}&se=1800000000&skn=Root")
        assert token.is_signed_by(KEY)
        assert canonical_path(unquote(token.resource)) == "q"


def test_unescaped_signature_keeps_its_plus_signs() -> None:
    for number in range(200):
        signature = sign(KEY, f"sb%3a%2f%2fh%2f{number}", "1800000000")
        raw = f"SharedAccessSignature sr=sb%3a%2f%2fh%2f{number}&sig={signature}&se=1800000000&skn=Root"
        assert SasToken.parse(raw).is_signed_by(KEY)


def test_matches_hmac_sha256_of_the_standard_library() -> None:
    expected = base64.b64encode(hmac.new(b"key", b"sr\n12", hashlib.sha256).digest()).decode()
    assert sign("key", "sr", "12") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Bearer x.y.z",
        "SharedAccessSignature",
        "SharedAccessSignature ",
        "SharedAccessSignature sr=a&sig=b&se=1",
        "SharedAccessSignature sr=a&sig=b&skn=c",
        "SharedAccessSignature sr=a&se=1&skn=c",
        "SharedAccessSignature sig=b&se=1&skn=c",
        "SharedAccessSignature sr=a&sig=b&se=1&skn=",
        "SharedAccessSignature sr=a&sr=b&sig=b&se=1&skn=c",
        "SharedAccessSignature sr=a&sig=b&se=tomorrow&skn=c",
        "SharedAccessSignature sr=a&sig=b&se=-1&skn=c",
        "SharedAccessSignature sr=a&sig=b&se=1.5&skn=c",
        "SharedAccessSignature sr=a&sig=b&se=\u0661\u0662&skn=c",
        "SharedAccessSignature sr=a&sig=b&se=" + "9" * 40 + "&skn=c",
        "SharedAccessSignature sr=" + "a" * 20_000 + "&sig=b&se=1&skn=c",
    ],
)
def test_refuses_what_is_no_token(text: str) -> None:
    with pytest.raises(MalformedTokenError, match=r"^MalformedToken: "):
        SasToken.parse(text)


@given(st.text(max_size=200))
def test_any_text_is_a_token_or_refused(text: str) -> None:
    for candidate in (text, "SharedAccessSignature " + text):
        try:
            token = SasToken.parse(candidate)
        except MalformedTokenError:
            continue
        token.is_signed_by(KEY)


@pytest.mark.parametrize(
    ("resource", "path"),
    [
        ("sb://host/", ""),
        ("sb://host", ""),
        ("", ""),
        ("/", ""),
        ("amqps://Host:5671/Queue", "queue"),
        ("https://host:443/queue/?api-version=2021-05&enrich=false", "queue"),
        ("https://host/topic/Subscriptions/s/Rules/$Default", "topic/subscriptions/s/rules/$default"),
        ("https://host/a%2Fb", "a/b"),
        ("sb://host//a//b/", "a/b"),
        ("queue", "queue"),
        ("/queue", "queue"),
        ("sb://[::1]:5672/queue", "queue"),
        ("https://host?x=1", ""),
    ],
)
def test_i3_compares_paths_alone(resource: str, path: str) -> None:
    assert canonical_path(resource) == path


@pytest.mark.parametrize(
    ("scope", "path", "expected"),
    [
        ("", "orders", True),
        ("orders", "orders", True),
        ("orders", "orders/$management", True),
        ("orders", "orders/subscriptions/s", True),
        ("orders", "orders-secret", False),
        ("orders", "order", False),
        ("orders/subscriptions/s", "orders", False),
        ("orders", "", False),
    ],
)
def test_i1_a_scope_ends_at_path_boundaries(scope: str, path: str, expected: bool) -> None:
    assert covers(scope, path) is expected


@given(
    st.from_regex(r"[a-z0-9._-]{1,8}(/[a-z0-9._-]{1,8}){0,2}", fullmatch=True),
    st.from_regex(r"[a-z0-9._-]+", fullmatch=True),
)
def test_i1_nothing_appended_to_a_segment_is_covered(scope: str, tail: str) -> None:
    assert not covers(scope, scope + tail)
    assert covers(scope, f"{scope}/{tail}")


def test_i4_errors_show_the_reason_and_no_secret() -> None:
    assert str(InvalidSignatureError()) == "InvalidSignature: The token has an invalid signature."
    assert str(ExpiredTokenError(0)).startswith(
        "ExpiredToken: The token is expired. Expiration time: '1970-01-01T00:00:00Z'"
    )
    assert str(ExpiredTokenError(10**18)).startswith("ExpiredToken: ")
    assert str(InvalidAudienceError("orders", "other")).startswith("InvalidAudience: ")
    with pytest.raises(MalformedTokenError) as caught:
        SasToken.parse(f"SharedAccessSignature sr=a&sig={quote(KEY)}&se=x&skn=c")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("error", [InvalidSignatureError(), ExpiredTokenError(5), InvalidAudienceError("a", "b")])
def test_errors_survive_pickling(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)


@pytest.mark.parametrize(
    "token", ["sr=\udcff&sig=x&se=9&skn=k", "sr=x&sig=\udcff&se=9&skn=k", "sr=x&sig=x&se=9&skn=\udcff"]
)
def test_bytes_that_are_no_text_are_malformed(token):
    with pytest.raises(MalformedTokenError):
        SasToken.parse("SharedAccessSignature " + token)


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("", [""]),
        ("orders", ["", "orders"]),
        ("t/subscriptions/s", ["", "t", "t/subscriptions", "t/subscriptions/s"]),
        ("a/" + "x" * 1022, ["", "a", "a/" + "x" * 1022]),
        ("a/" + "x" * 1023, ["", "a"]),
    ],
)
def test_parents(path: str, wanted: list[str]) -> None:
    assert list(parents(path)) == wanted
    assert all(covers(each, path) for each in wanted)
