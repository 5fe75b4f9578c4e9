import base64
import hashlib
import hmac
import pickle
from types import SimpleNamespace
from urllib.parse import parse_qs, unquote

import pytest

from isthmus.transport import Endpoint, IdentityCredential, NoCredential, SharedKeyCredential, SignatureCredential
from isthmus.transport.credential import TokenError, told_of_token


def test_a_shared_key_signs_resource_and_expiry() -> None:
    token = SharedKeyCredential("root", "s3cret", lifetime_seconds=60).token("sb://host/q", 1000.0)
    fields = {k: v[0] for k, v in parse_qs(token.text.partition(" ")[2]).items()}
    raw = token.text.partition("sr=")[2].partition("&")[0]
    expected = base64.b64encode(hmac.new(b"s3cret", f"{raw}\n1060".encode(), hashlib.sha256).digest()).decode()
    assert token.text.startswith("SharedAccessSignature ")
    assert fields == {"sr": "sb://host/q", "sig": expected, "se": "1060", "skn": "root"}
    assert unquote(raw) == "sb://host/q"
    assert token.expires_at == 1060.0


def test_no_credential_shows_or_pickles_its_key_i1() -> None:
    credential = SharedKeyCredential("root", "s3cret")
    assert "s3cret" not in repr(credential)
    assert "s3cret" not in repr(Endpoint("h", 1, credential=credential))
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(credential)


def test_a_ready_signature_shows_its_expiry_i2() -> None:
    text = "SharedAccessSignature sr=x&sig=y&se=1234&skn=n"
    token = SignatureCredential(text).token("sb://host/q", 0.0)
    assert (token.text, token.expires_at) == (text, 1234.0)


def test_an_identity_is_asked_for_the_service_bus_scope() -> None:
    asked = []

    def get_token(scope: str) -> SimpleNamespace:
        asked.append(scope)
        return SimpleNamespace(token="jwt-text", expires_on=99)

    token = IdentityCredential(SimpleNamespace(get_token=get_token)).token("sb://host/q", 0.0)
    assert asked == ["https://servicebus.azure.net/.default"]
    assert tuple(token) == ("jwt-text", "jwt", 99.0)


def test_nothing_need_be_shown_without_a_credential() -> None:
    assert NoCredential().token("sb://host/q", 0.0) is None


def test_an_identity_that_fails_is_an_error_that_may_pass_i3() -> None:
    def get_token(scope: str) -> SimpleNamespace:
        raise ValueError("the token service is away\nand this is how to find out why")

    with pytest.raises(TokenError, match=r"token service is away$") as raised:
        IdentityCredential(SimpleNamespace(get_token=get_token)).token("sb://host/q", 0.0)
    assert raised.value.retryable
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_of_a_chain_of_credentials_those_are_reported_that_met_something() -> None:
    """The first line of its error contains the cause of none."""
    text = """DefaultAzureCredential failed to retrieve a token from the included credentials.
Attempted credentials:
\tEnvironmentCredential: EnvironmentCredential authentication unavailable. Environment variables are not fully configured.
\tWorkloadIdentityCredential: Authentication failed: login.microsoftonline.com: timed out
To mitigate this issue, please refer to the troubleshooting guidelines."""
    assert told_of_token(ValueError(text)) == (
        "WorkloadIdentityCredential: Authentication failed: login.microsoftonline.com: timed out"
    )
    no_identity = text.replace("Authentication failed: login.microsoftonline.com: timed out", "it is unavailable")
    assert (
        told_of_token(ValueError(no_identity)) == "no Azure identity on this machine; az login, or a managed identity"
    )
    assert told_of_token(ValueError()) == "ValueError"
