"""The HTTP transport of azure-servicebus's administration client.

What it is: the way to the host: with or without TLS, past a proxy or not, and with the token as it is. On that way others see each request
and its answer: the rule of a subscription (`default_rule`), the condition of an update (`read_condition`), requests that are sent again
(`repetition`), what is no answer of a namespace (`answer`) and what a namespace says of itself (`namespace_header`). What it is not: anything
else of a request or an answer, which it passes on unchanged.

Invariants:
    I1. A request goes without TLS only with `plain`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from azure.core.exceptions import AzureError

from isthmus.connectors.sdk_transport import SdkTransport
from isthmus.connectors.servicebus.administration.answer import check_answer
from isthmus.connectors.servicebus.administration.default_rule import DefaultRule
from isthmus.connectors.servicebus.administration.namespace_header import NamespaceHeaders
from isthmus.connectors.servicebus.administration.read_condition import ReadCondition
from isthmus.connectors.servicebus.administration.repetition import Repetition

__all__ = ["AdministrationTransport"]

_AUTHORIZATION = "Authorization"
_BEARER = "Bearer "
_BEARER_SIGNATURE = f"{_BEARER}SharedAccessSignature "
# What is named here is not looked up in the environment.
_NO_PROXIES = {"http": "", "https": ""}


class AdministrationTransport(SdkTransport):
    """A transport for use by one thread at a time.

    Args:
        plain: send over HTTP what the client addresses to HTTPS.
        direct: past any proxy of the environment.
        options: of `RequestsTransport`.

    Attributes:
        default_rule: what subscriptions are created with.
        condition: of updates.
        repetition: of requests that the client sends again.
        namespace: what the namespace says of itself.
        is_refused: whether the namespace has refused the key or identity: it may have been replaced since the client was made.
    """

    def __init__(self, *, plain: bool = False, direct: bool = False, **options: Any) -> None:
        super().__init__(use_env_settings=not plain, **options)
        self._is_direct = direct
        self.is_plain = plain
        self.default_rule = DefaultRule()
        self.condition = ReadCondition()
        self.repetition = Repetition()
        self.namespace = NamespaceHeaders()
        self.is_refused = False

    def send(self, request: Any, **options: Any) -> Any:
        self.repetition.begin(request)
        self.default_rule.put_into(request)
        self.condition.put_into(request)
        try:
            response = self._sent(request, **options)
        except AzureError as error:
            self.repetition.failed(error)
            raise
        self.repetition.answered(response)
        self.is_refused |= response.status_code == HTTPStatus.UNAUTHORIZED
        kind = response.headers.get("Content-Type", "")
        check_answer(request.method, request.url, response.status_code, kind, response.body())
        self.namespace.note(response.headers)
        self.condition.note(request, response)
        return response

    def _sent(self, request: Any, **options: Any) -> Any:
        if self.is_plain and request.url.startswith("https:"):
            request.url = "http:" + request.url.removeprefix("https:")
        proof = request.headers.get(_AUTHORIZATION, "")
        if proof.startswith(_BEARER_SIGNATURE):  # the client takes a ready signature for a token of an identity
            request.headers[_AUTHORIZATION] = proof.removeprefix(_BEARER)
        if self._is_direct:
            options["proxies"] = _NO_PROXIES
        return super().send(request, **options)
