"""The rights to listen and to send at a hybrid connection, and the answers of refusals.

What it is: the token of a request found and checked, and the errors of the relay as HTTP answers. What it is not: the keys and
tokens themselves (`isthmus.broker.security`).
Spec: Microsoft Learn, "Azure Relay Hybrid Connections protocol" (request operation: where the token is; the tables of codes)
and "Azure Relay authentication and authorization".

Invariants:
    I1. Listening requires Listen; sending requires Send, unless the hybrid connection asks for no token.
    I2. No answer contains a token.
"""

from __future__ import annotations

import re
import secrets
from http import HTTPStatus

from aiohttp import web

from isthmus.broker.namespace import Namespace
from isthmus.broker.net.admission import admit
from isthmus.broker.relay.address import query_parameter, split_target
from isthmus.broker.security.grant import Grant, Right
from isthmus.errors import IsthmusError, UnauthorizedError

__all__ = ["RelayRefusedError", "authorise", "check_token", "parameter", "refused", "token_is_plain_header"]

_TOKEN = "sb-hc-token"
_HEADER = "ServiceBusAuthorization"
_UNSENDABLE = re.compile(r"[^\x20-\x7e]")


class RelayRefusedError(IsthmusError):
    """A request that is not relayed.

    Attributes:
        status: of the answer.
    """

    code = "relay-refused"

    def __init__(self, status: int = 500, reason: str = "") -> None:
        super().__init__(reason, status=status)
        self.status = status


def parameter(http: web.Request, name: str) -> str:
    """A parameter of the relay's own in the query, in any case of its name; "" where there is none."""
    _, query = split_target(http.raw_path)
    return query_parameter(query, name)


def token_is_plain_header(http: web.Request) -> bool:
    """Whether ``Authorization`` has the token for the relay: it does if the other two positions have none."""
    return not parameter(http, _TOKEN) and _HEADER not in http.headers and "Authorization" in http.headers


def authorise(http: web.Request, namespace: Namespace, name: str, right: Right, path: str = "") -> Grant:
    """The grant of a request's token.

    Args:
        http: the request.
        namespace: whose keys count.
        name: of the hybrid connection, canonical.
        right: that is needed.
        path: of the request, canonical, where it is longer than the name: a token may be for that path only.

    Raises:
        RelayRefusedError: there is no token, it is invalid, or it lacks the right.
    """
    token = parameter(http, _TOKEN) or http.headers.get(_HEADER, "") or http.headers.get("Authorization", "")
    if not token:
        raise RelayRefusedError(
            401, f"MissingToken: '{name}' needs a token with {right}, as {_HEADER} or as the parameter {_TOKEN}."
        )
    try:
        grant = check_token(namespace, path or name, token, right)
    except UnauthorizedError as error:
        raise RelayRefusedError(401, str(error)) from None
    admit(namespace.admission, http.transport)
    return grant


def check_token(namespace: Namespace, name: str, token: str, right: Right) -> Grant:
    """The grant of a token.

    Raises:
        UnauthorizedError: it is invalid.
        RelayRefusedError: it lacks the right.
    """
    grant = namespace.authority.authorise_token(token, f"sb:///{name}", namespace.token_clock.wall_ms())
    if not grant.covers(name, right):
        raise RelayRefusedError(403, f"The token has not {right} on '{name}'.")
    return grant


def refused(error: RelayRefusedError, headers: dict[str, str] | None = None) -> web.Response:
    """The answer of a refusal: its text is in the reason phrase, which is all that WebSocket clients show, and in the body."""
    text = f"{error} TrackingId:{secrets.token_hex(8)}"
    more = dict(headers or {})
    if error.status == HTTPStatus.UNAUTHORIZED:
        more["WWW-Authenticate"] = "SharedAccessSignature"
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        more["Retry-After"] = "1"
    return web.Response(status=error.status, reason=_UNSENDABLE.sub("?", text)[:480], text=text + "\n", headers=more)
