"""The HTTP transport of azure-servicebus's administration client, with what that client lacks.

What it is: a transport that refuses what is no answer of a namespace (`answer`); that remembers the version of the catalog that a
namespace tells; that puts a `DefaultRuleDescription` into the request that creates a subscription
(docs/explanation/protocol.md, Administration), for which the clients for .NET and Java have a parameter and the one for Python
has none; and that sends requests without TLS to a development namespace on this machine, where the client always asks for HTTPS.
What it is not: anything for other requests, which it passes on unchanged.

Invariants:
    I1. Only the body of a request that creates a subscription changes, and only while `default_rule` holds.
    I2. A request goes without TLS only with `plain`.
    I3. The client waits for `LONGEST_WAIT_SECONDS` at most before it repeats a request: it would wait as long as it is asked to, an hour
        where a proxy is in maintenance, and whoever called would not know why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from xml.etree import ElementTree as ET

from azure.core.exceptions import AzureError, ServiceRequestError

from isthmus.connectors.http.client import retry_after
from isthmus.connectors.sdk_transport import SdkTransport
from isthmus.connectors.servicebus.administration.answer import check_answer
from isthmus.topology.pair.description import Description
from isthmus.topology.state import RuleState

__all__ = ["LONGEST_WAIT_SECONDS", "DefaultRuleTransport", "birth_rule", "with_default_rule"]

_SB = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_XSI = "http://www.w3.org/2001/XMLSchema-instance"
_TYPE = f"{{{_XSI}}}type"

# The service reads data contracts in their order; the rule comes after these.
_BEFORE_RULE = (
    "LockDuration",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DeadLetteringOnFilterEvaluationExceptions",
)
_COMPATIBILITY_LEVEL = "20"
# As docs/explanation/protocol.md, Administration, has it.
_CATALOG_VERSION = "Isthmus-Catalog-Version"
_INSTANCE = "Isthmus-Instance"
_AUTHORIZATION = "Authorization"
_BEARER = "Bearer "
_BEARER_SIGNATURE = f"{_BEARER}SharedAccessSignature "
_RETRY_AFTER = "Retry-After"
LONGEST_WAIT_SECONDS = 10
# Of a gateway, or of a service that failed amid its work.
_UNKNOWN = frozenset({500, 502, 504})
# What is named here is not looked up in the environment.
_NO_PROXIES = {"http": "", "https": ""}


class DefaultRuleTransport(SdkTransport):
    """A transport that can add the rule; for use by one thread at a time.

    Args:
        plain: send over HTTP what the client addresses to HTTPS.
        direct: past any proxy of the environment.
        options: of `RequestsTransport`.

    Attributes:
        catalog_version: what the last answer that told one said of all descriptions: another value whenever one of them may
            be another than before. Empty where the namespace tells none, as Azure's do.
        is_unknown: whether nobody knows what became of the last request when the client sent it before.
        instance: which start of which namespace the last answer that told it came from. Empty as before.
        is_refused: whether the namespace has refused the key or identity: it may have been replaced since the client was made.
    """

    _rule: RuleState | None = None
    _request: object = None
    is_unknown = is_refused = False
    catalog_version = ""
    instance = ""

    def __init__(self, *, plain: bool = False, direct: bool = False, **options: Any) -> None:
        super().__init__(use_env_settings=not plain, **options)
        self._is_direct = direct
        self.is_plain = plain

    @contextmanager
    def default_rule(self, rule: RuleState | None) -> Iterator[None]:
        """While it holds, subscriptions are created with this rule; None is the service's `$Default`."""
        self._rule = rule
        try:
            yield
        finally:
            self._rule = None

    @contextmanager
    def done_before(self, answer: type[AzureError]) -> Iterator[None]:
        """While it holds, this answer to a repeated request is none: the same request, whose answer was lost, has done it before."""
        try:
            yield
        except answer:
            if not self.is_unknown:
                raise

    def send(self, request: Any, **options: Any) -> Any:
        if request is not self._request:
            self._request, self.is_unknown = request, False
        if self._rule is not None and request.method == "PUT" and request.body:
            body = with_default_rule(request.body, self._rule)
            request.set_bytes_body(body)
            request.headers["Content-Length"] = str(len(body))
        if self.is_plain and request.url.startswith("https:"):
            request.url = "http:" + request.url.removeprefix("https:")
        proof = request.headers.get(_AUTHORIZATION, "")
        if proof.startswith(_BEARER_SIGNATURE):  # the client takes a ready signature for a token of an identity
            request.headers[_AUTHORIZATION] = proof.removeprefix(_BEARER)
        if self._is_direct:
            options["proxies"] = _NO_PROXIES
        try:
            response = super().send(request, **options)
        except AzureError as error:
            self.is_unknown |= not isinstance(error, ServiceRequestError)  # which says that nothing was sent
            raise
        self.is_unknown |= response.status_code in _UNKNOWN
        self.is_refused |= response.status_code == HTTPStatus.UNAUTHORIZED
        if retry_after({"retry-after": response.headers.get(_RETRY_AFTER, "")}) > LONGEST_WAIT_SECONDS:
            response.headers[_RETRY_AFTER] = str(LONGEST_WAIT_SECONDS)
        kind = response.headers.get("Content-Type", "")
        check_answer(request.method, request.url, response.status_code, kind, response.body())
        self.catalog_version = response.headers.get(_CATALOG_VERSION, self.catalog_version)
        self.instance = response.headers.get(_INSTANCE, self.instance)
        return response


def with_default_rule(body: str | bytes, rule: RuleState) -> bytes:
    """The Atom entry of a SubscriptionDescription with the rule put in its place; any other body, and one that has a rule, unchanged."""
    entry = ET.fromstring(body)  # noqa: S314 - the body is our own client's
    description = entry.find(f".//{{{_SB}}}SubscriptionDescription")
    # A request that is sent again has its rule already; a second one the service may refuse.
    if description is None or description.find(f"{{{_SB}}}DefaultRuleDescription") is not None:
        return body.encode() if isinstance(body, str) else body
    before = {f"{{{_SB}}}{name}" for name in _BEFORE_RULE}
    position = sum(1 for element in description if element.tag in before)
    description.insert(position, _rule_element(rule))
    return bytes(ET.tostring(entry, encoding="utf-8"))


def birth_rule(rules: Sequence[Description]) -> RuleState | None:
    """The rule that a subscription can be created with, where it is the only one and can be written there; saves three requests."""
    if len(rules) != 1:
        return None
    kind, *condition = rules[0].settings["filter"]
    action, action_parameters = rules[0].settings["action"]
    if kind != "sql" or condition[1] or action_parameters or not condition[0]:
        return None
    native = rules[0].native
    return RuleState(rules[0].names[-1], native.filter.sql_expression, native.action.sql_expression if action else "")


def _rule_element(rule: RuleState) -> ET.Element:
    element = ET.Element(f"{{{_SB}}}DefaultRuleDescription")
    condition = ET.SubElement(element, f"{{{_SB}}}Filter", {_TYPE: "SqlFilter"})
    ET.SubElement(condition, f"{{{_SB}}}SqlExpression").text = rule.filter
    ET.SubElement(condition, f"{{{_SB}}}CompatibilityLevel").text = _COMPATIBILITY_LEVEL
    if rule.action:
        action = ET.SubElement(element, f"{{{_SB}}}Action", {_TYPE: "SqlRuleAction"})
        ET.SubElement(action, f"{{{_SB}}}SqlExpression").text = rule.action
        ET.SubElement(action, f"{{{_SB}}}CompatibilityLevel").text = _COMPATIBILITY_LEVEL
    else:
        ET.SubElement(element, f"{{{_SB}}}Action", {_TYPE: "EmptyRuleAction"})
    ET.SubElement(element, f"{{{_SB}}}Name").text = rule.name
    return element
