import pytest

from isthmus.broker.link.request import Request
from isthmus.broker.security.access import Access
from isthmus.broker.security.authority import Authority
from isthmus.broker.security.cbs import put_token
from isthmus.broker.security.grant import Grant, Right
from isthmus.broker.security.keyring import Keyring
from isthmus.broker.security.sas import make_token
from isthmus.entities import AuthorizationRule
from isthmus.errors import UnauthorizedError
from isthmus.testing.clock import ManualClock

ALL, LISTEN = ["Send", "Listen", "Manage"], ["Listen"]


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def access(clock):
    rules = [AuthorizationRule("root", "key-1", "key-2", ALL), AuthorizationRule("reader", "key-3", "key-4", LISTEN)]
    return Access(Authority(Keyring(rules)), clock)


def token(clock, resource="sb://host/orders", name="root", key="key-1", seconds=60):
    return make_token(resource, name, key, clock.wall_ms() + seconds * 1000)


def put(access, token, audience="sb://host/orders", exists=lambda path: True):
    return put_token(Request("m", None, "put-token", {"name": audience}, token), access, exists)


def test_nothing_is_permitted_without_a_token_i1(access):
    assert not access.has_grant
    with pytest.raises(UnauthorizedError, match="'Send' claim"):
        access.require("orders", Right.SEND)


def test_a_token_opens_its_entity_and_what_lies_below_i1(access, clock):
    assert put(access, token(clock)).status == 202
    assert access.permits("orders", Right.SEND)
    assert access.permits("Orders/$management", Right.LISTEN)
    assert not access.permits("orders-secret", Right.SEND)
    assert not access.permits("", Right.MANAGE)


def test_a_right_that_the_rule_lacks_is_refused_i1(access, clock):
    assert put(access, token(clock, name="reader", key="key-3")).status == 202
    assert access.permits("orders", Right.LISTEN)
    assert not access.permits("orders", Right.SEND)


def test_an_expired_grant_opens_nothing_i1(access, clock):
    put(access, token(clock, seconds=5))
    clock.advance(6000)
    assert not access.permits("orders", Right.SEND)
    assert not access.has_grant
    assert access.drop_expired()
    assert not access.drop_expired()


def test_a_fresh_token_replaces_the_one_before(access, clock):
    put(access, token(clock, seconds=5))
    put(access, token(clock, seconds=50))
    clock.advance(6000)
    assert access.permits("orders", Right.SEND)
    assert not access.drop_expired()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda clock: token(clock, key="wrong"), "InvalidSignature"),
        (lambda clock: token(clock, seconds=-1), "ExpiredToken"),
        (lambda clock: token(clock, resource="sb://host/other"), "InvalidAudience"),
        (lambda clock: "SharedAccessSignature nonsense", "MalformedToken"),
        (lambda clock: "ey.jw.t", "MalformedToken: "),
    ],
)
def test_a_bad_token_is_answered_401_and_never_reported_i2(access, clock, make, text):
    shown = make(clock)
    reply = put(access, shown)
    assert (reply.status, reply.condition) == (401, "com.microsoft:auth-failed")
    assert reply.description.startswith(text)
    assert shown not in reply.description
    assert not access.has_grant


def test_an_unknown_entity_is_answered_404(access, clock):
    reply = put(access, token(clock), exists=lambda path: False)
    assert (reply.status, reply.condition) == (404, "amqp:not-found")
    assert "could not be found" in reply.description


def test_management_nodes_and_the_namespace_count_as_found(access, clock):
    exists = {"orders"}.__contains__
    root = token(clock, resource="sb://host")
    for audience in ("sb://host/", "sb://host/orders/$management", "amqps://host:5671/orders", "sb://host/$management"):
        assert put(access, root, audience, exists).status == 202


def test_put_token_needs_a_token_and_a_name(access):
    assert put(access, None).status == 400
    assert put(access, "x", audience=None).status == 400
    assert put_token(Request("m", None, "delete-token", {}, ""), access, bool).condition == "amqp:not-implemented"


def test_many_tokens_make_no_question_dearer(access, clock, monkeypatch):
    """A key of one entity signs for everything below it: 10,000 tokens are a matter of seconds."""
    for number in range(200):
        assert put(access, token(clock), f"sb://host/orders/x{number}").status == 202
    asked = []
    real = Grant.covers
    monkeypatch.setattr(Grant, "covers", lambda self, path, right: asked.append(1) or real(self, path, right))
    assert access.permits("orders/x7/$management", Right.SEND)
    assert not access.permits("elsewhere", Right.SEND)
    assert len(asked) <= 3


def test_a_token_for_the_namespace_opens_everything_i1(access, clock):
    put(access, token(clock, resource="sb://host/"), "sb://host/")
    assert access.permits("", Right.MANAGE)
    assert access.permits("topic/Subscriptions/s/$DeadLetterQueue", Right.LISTEN)


def test_an_audience_longer_than_any_entity_s_is_refused(access, clock):
    assert put(access, token(clock), "sb://host/orders/" + "x" * 2000).status == 401
    assert not access.has_grant
