from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.connectors.secret import Secret
from isthmus.connectors.servicebus.connection_string import ConnectionString, ConnectionStringError

KEY = "bm90LWEta2V5LWJ1dC1sb25n="
CLOUD = f"Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={KEY}"


def test_a_clouds_string() -> None:
    parts = ConnectionString.parse(Secret(f" {CLOUD};EntityPath=flights; "))
    assert (parts.host, parts.port) == ("contoso.servicebus.windows.net", None)
    assert (parts.key_name, parts.key, parts.signature, parts.entity_path) == ("Root", Secret(KEY), None, "flights")
    assert parts.tls
    assert parts.data_port == 5671
    assert parts.audience("/flights/") == "sb://contoso.servicebus.windows.net/flights"


def test_i3_the_emulators_flag_means_plain_amqp_on_its_port() -> None:
    text = f"endpoint=sb://127.0.0.1:5673;SHAREDACCESSKEYNAME=Root;sharedaccesskey={KEY};UseDevelopmentEmulator=true"
    parts = ConnectionString.parse(text)
    assert (parts.authority, parts.tls, parts.data_port) == ("127.0.0.1:5673", False, 5673)
    assert ConnectionString.parse(text.replace(":5673", "")).data_port == 5672
    assert ConnectionString.parse(text.replace("=true", "=True")).tls


def test_the_transport_type_says_whether_amqp_goes_over_websocket() -> None:
    assert not ConnectionString.parse(CLOUD).websocket
    assert not ConnectionString.parse(f"{CLOUD};TransportType=Amqp").websocket
    assert ConnectionString.parse(f"{CLOUD};TransportType=AmqpWebSockets").websocket
    with pytest.raises(ConnectionStringError, match="TransportType"):
        ConnectionString.parse(f"{CLOUD};TransportType=NetMessaging")


def test_ipv6() -> None:
    parts = ConnectionString.parse(CLOUD.replace("contoso.servicebus.windows.net", "[::1]:5673"))
    assert (parts.host, parts.authority) == ("::1", "[::1]:5673")


def test_a_signature_instead_of_a_key() -> None:
    parts = ConnectionString.parse("Endpoint=sb://h/;SharedAccessSignature=SharedAccessSignature sr=x&sig=y%3d&se=1")
    assert parts.signature == Secret("SharedAccessSignature sr=x&sig=y%3d&se=1")
    assert parts.key is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("nonsense", "no '='"),
        (KEY, "empty or malformed"),
        (CLOUD.replace("Endpoint", "Endpont"), "Endpoint is missing"),
        (CLOUD.replace("contoso.servicebus.windows.net", ""), "no host"),
        (CLOUD.replace("windows.net", "windows.net:port"), "Endpoint is malformed"),
        (CLOUD.replace("SharedAccessKeyName=Root;", ""), "go together"),
        (CLOUD.partition(";")[0], "exactly one"),
        (f"{CLOUD};SharedAccessSignature=x", "exactly one"),
        (f"{CLOUD};SharedAccessKey={KEY}", "SharedAccessKey appears twice"),
    ],
)
def test_i2_a_wrong_string_is_refused_without_repeating_it(text: str, reason: str) -> None:
    with pytest.raises(ConnectionStringError, match=reason) as raised:
        ConnectionString.parse(text)
    assert KEY not in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_i2_no_repr_holds_the_key() -> None:
    assert KEY not in repr(ConnectionString.parse(CLOUD))


@given(st.text(max_size=80))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        ConnectionString.parse(text)
    except ConnectionStringError:
        return
