"""What a token's resource opens, however its text is written and whatever host the client names."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from isthmus.broker.security.authority import Authority
from isthmus.broker.security.grant import Right
from isthmus.broker.security.keyring import Keyring
from isthmus.broker.security.own_host import OwnHosts
from isthmus.broker.security.sas import TokenError, make_token, sign
from isthmus.entities import AuthorizationRule

KEY = "key-1"
NOW_MS = 1_000_000_000_000
ROOT = AuthorizationRule("root", KEY, "key-2", ["Send", "Listen", "Manage"])
HOSTS = OwnHosts(["localhost", "::1", "bus.example", "ledger"])


class Entities:
    """Entities without rules."""

    paths = frozenset({"orders", "secret", "ledger", "a", "a/b"})

    def of(self, path):
        return ()

    def named(self, key_name):
        return ()

    def exists(self, path):
        return path in self.paths


@pytest.fixture
def authority():
    return Authority(Keyring([ROOT]), Entities(), hosts=HOSTS)


def raw(resource: str) -> str:
    """A token whose `sr` text is exactly this."""
    signature = sign(KEY, resource, "1900000000").replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
    return f"SharedAccessSignature sr={resource}&sig={signature}&se=1900000000&skn=root"


def opened(authority, token: str, audience: str) -> bool:
    try:
        return authority.authorise_token(token, audience, NOW_MS).covers(audience, Right.SEND)
    except TokenError:
        return False


# The issuer meant the entity `orders` by each of these.
FOR_ORDERS = [
    "orders", "Orders", "ORDERS/", "/orders", "//orders", "///orders/", "orders?x=1", "orders#x", "%6frders", "%256frders",
    "orders%2F", "%2Forders", "orders%3Fx", "orders%2523", "sb%3A%2F%2Flocalhost%2Forders",
    "sb://host/orders", "SB://localhost/orders", "amqp://localhost/orders/", "amqps://localhost:5671/orders",
    "http://localhost/orders", "https://localhost:443/orders?api-version=2021-05", "wss://localhost/orders",
    "sb:///orders", "localhost/orders", "LOCALHOST:5671/Orders", "[::1]:5672/orders", "localhost./orders",
    "bus.example/orders", "127.0.0.1:5672/orders", "orders+", "orders ", "%20orders%20",
]  # fmt: skip
HOSTS_OF_CLIENTS = [
    "orders", "Orders", "ORDERS", "orders:5672", "user@orders", "orders@localhost", "orders.", "ORDERS:1", "[orders]",
    "sb", "x", "", "localhost", "host", "orders%2F", "%6frders", "[::1]", "ord\u0435rs", "\uff4frders",
]  # fmt: skip


@pytest.mark.parametrize("resource", FOR_ORDERS)
def test_a_token_for_one_entity_opens_no_other_whatever_host_the_client_names(authority, resource):
    for scheme in ("sb", "amqp", "amqps", "http", "https", "SB", "x", ""):
        for host in HOSTS_OF_CLIENTS:
            for path in ("secret", "", "$management", "secret/$management", "$resources/queues"):
                audience = f"{scheme}://{host}/{path}" if scheme else f"{host}/{path}"
                if not scheme and unquote(audience).lower().startswith(
                    "orders/"
                ):  # without a scheme this is below `orders` itself
                    continue
                assert not opened(authority, raw(resource), audience), audience


@pytest.mark.parametrize("resource", [each for each in FOR_ORDERS if each not in ("orders+", "orders%2523")])
def test_a_token_for_one_entity_opens_that_entity(authority, resource):
    assert opened(authority, raw(resource), "sb://anything:5671/orders")
    assert opened(authority, raw(resource), "sb://anything:5671/orders/$management")


@pytest.mark.parametrize("resource", ["sb://host/", "https://host", "sb://host:1?x", "localhost", "localhost:5671/",
                                      "bus.example", "127.0.0.1", "[::1]:5672", "sb://10.9.8.7/"])  # fmt: skip
def test_a_token_for_a_host_opens_the_namespace(authority, resource):
    assert opened(authority, make_token(resource, "root", KEY, 1_900_000_000_000), "sb://host/secret")


@pytest.mark.parametrize(
    "resource", ["%20", "%2F", "/", "%3Fx", "%23orders", "//", "%2F%3Forders", "%09", "%2520", "sb://"]
)
def test_a_resource_that_names_neither_host_nor_path_opens_nothing(authority, resource):
    for audience in ("sb://host/orders", "sb://host/secret", "sb://host/"):
        assert not opened(authority, raw(resource), audience)


@pytest.mark.parametrize("resource", ["sb://orders", "sb://Orders:5671/", "sb://orders/?x", "sb:orders", "x://orders",
                                      "sb://orders\\", "sb://localhost\\orders", "sb://orders@localhost",
                                      "sb://user:secret@localhost", "sb:// orders", "sb://loc\talhost/", "sb://a%2Fb"])  # fmt: skip
def test_an_entity_in_the_place_of_the_host_opens_nothing(authority, resource):
    for audience in ("sb://host/orders", "sb://orders/secret", "sb://host/"):
        assert not opened(authority, make_token(resource, "root", KEY, 1_900_000_000_000), audience)


def test_who_has_no_key_learns_nothing_of_entities(authority):
    answers = set()
    for name in ("orders", "no-entity"):
        for resource in (f"sb://{name}", f"sb://{name}/x", name, f"localhost/{name}", f"ledger/{name}"):
            token = make_token(resource, "root", "no key", 1_900_000_000_000)
            with pytest.raises(TokenError) as caught:
                authority.authorise_token(token, f"sb://host/{name}", NOW_MS)
            answers.add(str(caught.value))
    assert len(answers) == 1


def test_what_reads_as_an_entity_s_path_is_one_though_it_is_the_server_s_host_too(authority):
    token = make_token("ledger", "root", KEY, 1_900_000_000_000)
    assert opened(authority, token, "sb://host/ledger")
    assert not opened(authority, token, "sb://ledger/secret")
    assert not opened(authority, make_token("ledger/secret", "root", KEY, 1_900_000_000_000), "sb://ledger/secret")


def test_an_address_is_the_server_s_own_where_the_machine_has_it():
    assert "127.0.0.1" in HOSTS
    assert "127.8.9.10:5671" in HOSTS
    assert "192.0.2.1" not in HOSTS
    assert "2001:db8::1" not in HOSTS
    assert "orders" not in HOSTS
    assert "" not in HOSTS
