"""The HTTP transport of azure-servicebus's administration client.

What it is: the connection to the host: with or without TLS, with or without a proxy, and with the token unchanged. Other components see
each request and its answer: the rule of a subscription (`default_rule`), the condition of an update (`read_condition`), repeated requests
(`repetition`), answers that are not a namespace's (`answer`) and the namespace's headers (`namespace_header`). What it is not: any other
change of a request or an answer.

Invariants:
    I1. A request is sent without TLS only with `plain`.
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
# Hosts named here are not looked up in the environment.
_NO_PROXIES = {"http": "", "https": ""}


class AdministrationTransport(SdkTransport):
    """A transport for use by one thread at a time.

    Args:
        plain: send requests over HTTP that the client addresses to HTTPS.
        direct: use no proxy of the environment.
        options: of `RequestsTransport`.

    Attributes:
        default_rule: the rule of new subscriptions.
        condition: the condition of updates.
        repetition: the repeated requests of the client.
        namespace: the namespace's headers.
        is_refused: whether the namespace has refused the key or identity: it may have been replaced since the client was opened.
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
        if proof.startswith(_BEARER_SIGNATURE):  # the client takes a ready signature for an identity's token
            request.headers[_AUTHORIZATION] = proof.removeprefix(_BEARER)
        if self._is_direct:
            options["proxies"] = _NO_PROXIES
        return super().send(request, **options)
