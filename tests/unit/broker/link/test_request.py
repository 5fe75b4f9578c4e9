import uuid
from types import SimpleNamespace

import pytest

from isthmus.amqp import CodecError, section
from isthmus.amqp.types import ULong
from isthmus.broker.link.request import Replies, Reply, Request, find_replies
from isthmus.broker.management import MANAGEMENT_STYLE
from isthmus.broker.security.cbs import CBS_STYLE
from isthmus.errors import InvalidArgumentError


def request(body=None, **properties):
    return section.encode_message(
        {} if body is None else body,
        properties=properties or None,
        application_properties={"operation": "com.microsoft:peek-message"},
        value_body=True,
    )


@pytest.mark.parametrize(
    "message_id", ["text", uuid.UUID(int=7), ULong(7), b"raw"], ids=lambda value: type(value).__name__
)
def test_the_correlation_id_keeps_the_type_of_the_message_id_i1(message_id):
    asked = Request.decode(request(message_id=message_id))
    reply = Reply().encode(asked, MANAGEMENT_STYLE)
    properties = section.decode_properties(reply, section.locate(reply).properties)
    assert properties["correlation_id"] == message_id
    assert type(properties["correlation_id"]) is type(message_id)


def test_each_node_spells_its_status_its_own_way():
    failed = Reply(404, "none", None, "amqp:not-found")
    for style, names in ((CBS_STYLE, {"status-code", "status-description", "error-condition"}),
                         (MANAGEMENT_STYLE, {"statusCode", "statusDescription", "errorCondition"})):  # fmt: skip
        reply = failed.encode(None, style)
        properties = section.decode_map(reply, section.locate(reply).application_properties)
        assert set(properties) == names


def test_a_request_without_an_operation_is_refused():
    with pytest.raises(InvalidArgumentError, match="operation"):
        Request.decode(section.encode_message({}, value_body=True))


@pytest.mark.parametrize("payload", [b"", b"\0Sw", b"nonsense", b"\0St\xc1\xff"])
def test_bytes_that_are_no_request_are_refused(payload):
    with pytest.raises((InvalidArgumentError, CodecError)):
        Request.decode(payload)


@pytest.mark.parametrize(
    ("body", "text"),
    [({}, "lacks 'n'"), ({"n": "x"}, "'n' is str"), ({"n": True}, "'n' is bool"), ("x", "lacks 'n'")],
    ids=["missing", "text", "boolean", "no map"],
)
def test_fields_are_checked(body, text):
    with pytest.raises(InvalidArgumentError, match=text):
        Request("m", None, "op", {}, body).field("n", int)


class FakeLink:
    delivery_count = credit = 0

    def __init__(self, name, target, amqp_session="one"):
        self.name = name
        self.target = type("Target", (), {"address": target})() if target else None
        self.amqp_session = amqp_session


def test_replies_go_where_they_were_asked_to_i2():
    by_target = Replies(FakeLink("a", "reply-1"), "q/$management")
    by_name = Replies(FakeLink("reply-2", None), "q/$management")
    elsewhere = Replies(FakeLink("c", "x", "two"), "q/$management")
    other_node = Replies(FakeLink("d", "y"), "$cbs")
    links = [by_target, by_name, elsewhere, other_node]
    arrived = FakeLink("in", "z")

    def wanted(reply_to):
        return find_replies(links, Request("m", reply_to, "op", {}, None), "q/$management", arrived)

    assert wanted("reply-1") is by_target
    assert wanted("reply-2") is by_name
    assert wanted(None) is by_name
    assert find_replies(links, None, "$cbs", arrived) is other_node
    assert find_replies([elsewhere], None, "q/$management", arrived) is None


def test_of_links_with_one_address_the_one_in_the_requests_session_is_answered_i2():
    elsewhere = Replies(FakeLink("a", "reply", "two"), "q/$management")
    here = Replies(FakeLink("b", "reply"), "q/$management")
    request = Request("m", "reply", "op", {}, None)
    assert find_replies([elsewhere, here], request, "q/$management", FakeLink("in", "z")) is here
    assert find_replies([elsewhere], request, "q/$management", FakeLink("in", "z")) is elsewhere


def test_a_link_that_is_about_to_end_is_not_answered_on_where_the_client_has_another_i2():
    ending, new = (Replies(CreditedLink(), "q/$management") for _ in range(2))
    new.link.amqp_session = ending.link.amqp_session
    ending.promised = 1
    ending.when_sent(lambda: None)
    asked = Request("m", "reply", "op", {}, None)
    for links in ([ending, new], [new, ending]):
        assert find_replies(links, asked, "q/$management", ending.link) is new
        assert find_replies(links, Request("m", None, "op", {}, None), "q/$management", ending.link) is new
    assert find_replies([ending], asked, "q/$management", ending.link) is ending


class CreditedLink(FakeLink):
    """A link that counts what is sent."""

    drain = is_sending = detached = False

    def __init__(self):
        super().__init__("replies", "reply", SimpleNamespace(ended=False))
        self.sent = []

    def overdraw(self):
        self.credit = max(self.credit, 1)

    def send(self, message, tag, settled):
        assert self.credit > 0
        self.credit -= 1
        self.delivery_count += 1
        self.sent.append(message)


def granted(credit):
    link = CreditedLink()
    replies = Replies(link, "q/$management")
    link.credit = credit
    replies.on_credit()
    return link, replies


def test_i3_a_client_that_grants_only_once_gets_all_replies():
    link, replies = granted(10_000)
    for number in range(10_002):
        replies.send(b"%d" % number)
    replies.on_tick(1.0)
    replies.on_tick(1.9)
    replies.on_credit()  # the session's window moved
    assert len(link.sent) == 10_000
    replies.on_tick(2.0)
    assert link.sent == [b"%d" % number for number in range(10_002)]
    replies.on_credit()
    replies.send(b"at once")
    assert link.sent[-1] == b"at once"
    assert replies.waiting_bytes == 0


@pytest.mark.parametrize(("first", "second"), [(10, 0), (5000, 5000), (999, 0)])
def test_i3_a_client_that_counts_replies_gets_none_beyond_its_credit(first, second):
    link, replies = granted(first)
    for number in range(first):
        replies.send(b"%d" % number)
    if second:
        link.credit = second
        replies.on_credit()
    for number in range(second + 1):
        replies.send(b"%d" % number)
    for now in range(10):
        replies.on_tick(float(now))
    assert (len(link.sent), len(replies._waiting)) == (first + second, 1)


def test_i3_a_client_that_grants_late_counts_replies_again():
    link, replies = granted(1000)
    for number in range(1001):
        replies.send(b"%d" % number)
    replies.on_tick(0.0)
    replies.on_tick(1.0)
    assert len(link.sent) == 1001
    link.credit = 1
    replies.on_credit()
    replies.send(b"granted")
    replies.send(b"beyond")
    replies.on_tick(2.0)
    replies.on_tick(9.0)
    assert (link.sent[-1], len(replies._waiting)) == (b"granted", 1)
