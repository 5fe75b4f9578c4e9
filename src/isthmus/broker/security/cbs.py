"""The `$cbs` node: clients send their tokens here.

What it is: the one operation `put-token`. Spec: AMQP claims-based security (working draft 2), docs/explanation/protocol.md, Tokens.

Invariants:
    I1. The reply contains the fault of a token, never the token.
    I2. An audience whose entity does not exist is answered 404, as the service does.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.broker.link.request import Reply, Request, Style
from isthmus.broker.security.access import Access
from isthmus.broker.security.sas import canonical_path
from isthmus.errors import EntityNotFoundError, UnauthorizedError

__all__ = ["CBS_NODE", "CBS_STYLE", "put_token"]

CBS_NODE = "$cbs"
CBS_STYLE = Style("status-code", "status-description", "error-condition")

_MANAGEMENT_SUFFIX = "/$management"


def put_token(request: Request, access: Access, entity_exists: Callable[[str], bool]) -> Reply:
    """Answer a request to the `$cbs` node.

    Args:
        request: the client's.
        access: gets the grant.
        entity_exists: whether an entity has a canonical path.
    """
    if request.operation != "put-token":
        return Reply(400, f"The operation '{request.operation[:64]}' is not known here.", None, "amqp:not-implemented")
    token, audience = request.body, request.properties.get("name")
    if isinstance(token, bytes):
        token = token.decode("utf-8", "replace")
    if not isinstance(token, str) or not isinstance(audience, str):
        return Reply(
            400, "put-token needs a string body and the property 'name'.", None, "com.microsoft:argument-error"
        )
    try:
        access.present_token(token, audience)
    except UnauthorizedError as error:
        return Reply(401, str(error), None, "com.microsoft:auth-failed")
    path = canonical_path(audience).removesuffix(_MANAGEMENT_SUFFIX)
    if path and not path.startswith("$") and not entity_exists(path):
        return Reply(404, str(EntityNotFoundError(audience)), None, "amqp:not-found")
    return Reply(202, "Accepted")
