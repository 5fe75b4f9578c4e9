"""isthmus.connectors.servicebus.administration.default_rule."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from azure.core.pipeline.transport import HttpRequest

from isthmus.connectors.servicebus.administration.default_rule import DefaultRule, with_default_rule
from isthmus.topology import RuleState

SB = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"
ENTRY = (
    '<ns0:entry xmlns:ns0="http://www.w3.org/2005/Atom" xmlns:ns1="{sb}"><ns0:content type="application/xml">'
    "<ns1:{what}><ns1:LockDuration>PT30S</ns1:LockDuration><ns1:RequiresSession>false</ns1:RequiresSession>"
    "<ns1:MaxDeliveryCount>2000</ns1:MaxDeliveryCount></ns1:{what}></ns0:content></ns0:entry>"
)


def entry(what: str) -> str:
    return ENTRY.format(sb=SB[1:-1], what=what)


def test_the_rule_is_written_where_the_service_reads_it() -> None:
    body = with_default_rule(entry("SubscriptionDescription"), RuleState("isthmus", "a < 1", "SET a = 1"))
    description = ET.fromstring(body).find(f".//{SB}SubscriptionDescription")
    assert description is not None
    assert [element.tag.removeprefix(SB) for element in description] == [
        "LockDuration",
        "RequiresSession",
        "DefaultRuleDescription",
        "MaxDeliveryCount",
    ]
    rule = description[2]
    assert rule.findtext(f"{SB}Filter/{SB}SqlExpression") == "a < 1"
    assert rule.findtext(f"{SB}Action/{SB}SqlExpression") == "SET a = 1"
    assert rule.findtext(f"{SB}Name") == "isthmus"


def test_a_rule_without_action_has_an_empty_one() -> None:
    body = with_default_rule(entry("SubscriptionDescription").encode(), RuleState("r", "1=1")).decode()
    assert "EmptyRuleAction" in body
    assert "SqlRuleAction" not in body


def test_i1_other_entities_are_unchanged() -> None:
    text = entry("TopicDescription")
    assert with_default_rule(text, RuleState("r", "1=1")) == text.encode()


def test_a_request_that_is_sent_again_has_the_rule_once() -> None:
    """The client sends one request object again, with the body that the transport gave it."""
    rule, sent = DefaultRule(), []
    request = HttpRequest("PUT", "https://host/t/Subscriptions/s")
    request.set_bytes_body(entry("SubscriptionDescription").encode())
    with rule.given(RuleState("isthmus", "a < 1")):
        for _ in range(3):
            rule.put_into(request)
            sent.append(request.body)
            assert request.headers["Content-Length"] == str(len(request.body))
    assert [len(ET.fromstring(body).findall(f".//{SB}DefaultRuleDescription")) for body in sent] == [1, 1, 1]
    assert sent[0] == sent[2]


def test_i1_only_while_a_rule_is_given() -> None:
    rule = DefaultRule()
    with rule.given(RuleState("isthmus", "a < 1")):
        pass
    request = HttpRequest("PUT", "https://host/t/Subscriptions/s")
    request.set_bytes_body(body := entry("SubscriptionDescription").encode())
    rule.put_into(request)
    assert request.body == body
