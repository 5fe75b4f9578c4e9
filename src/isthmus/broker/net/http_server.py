"""The HTTP server of a namespace: administration, `/health`, `/metrics`, the relay, and AMQP over WebSocket.

What it is: the applications together on aiohttp's server. Importing it takes as long as the rest of a start, so
`isthmus.broker.server` does it in the background, behind `isthmus.broker.net.http_gate`. What it is not: a listener.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

from aiohttp import web

from isthmus.broker.admin import build_admin_app
from isthmus.broker.namespace import Namespace
from isthmus.broker.net.admission import admit
from isthmus.broker.net.http_log import http_log
from isthmus.broker.net.websocket import add_websocket
from isthmus.broker.operator_api import add_operator_api
from isthmus.broker.relay.gate import add_relay
from isthmus.broker.security.authority import Authority
from isthmus.entities import Limits

__all__ = ["start_http"]

# How long an HTTP client may keep an idle connection between two requests.
_KEEP_ALIVE_SECONDS = 120.0


async def start_http(
    namespace: Namespace,
    authority: Authority,
    limits: Limits,
    stack: AsyncExitStack,
    backups: Path | None = None,
) -> Callable[[], asyncio.BaseProtocol]:
    """Makes the server; returns its protocol factory.

    Args:
        namespace: what is administered.
        authority: checks tokens.
        limits: those of the engine.
        stack: gets the resources to close.
        backups: folder of back-ups; None where none can be made.
    """
    commits = namespace.commits
    app = build_admin_app(
        namespace.engine,
        authority,
        namespace.clock,
        namespace.name,
        commit=commits.wait_durable,
        health=namespace.health,
        limits=limits,
        on_authorised=lambda http: admit(namespace.admission, http.transport),
        listeners=namespace.relay.listeners,
    )
    add_operator_api(app, namespace, authority, backups)
    add_relay(app, namespace, namespace.relay)
    add_websocket(app, namespace)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=http_log(),
        handle_signals=False,
        keepalive_timeout=_KEEP_ALIVE_SECONDS,
        shutdown_timeout=2.0,
        auto_decompress=False,  # a relayed body is passed on in its own encoding: a compressed one is not expanded
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    stack.callback(namespace.relay.close)  # before the server waits for its requests, to which these sockets belong
    return cast("Callable[[], asyncio.BaseProtocol]", runner.server)
