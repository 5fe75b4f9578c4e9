"""The process of `isthmus namespace serve`: namespaces that run in it until a signal ends it.

What it is: the settings of the whole process, the order in which namespaces start and stop, and the signals. What it is not: one namespace
(`isthmus.broker.server`), or a command line (`isthmus.cli.namespace.serve`).

Invariants:
    I1. Connection strings are announced only when clients can connect to all namespaces.
    I2. SIGTERM and SIGINT stop all of them, the last one first.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from isthmus.broker.net.descriptor import allow_many
from isthmus.broker.net.log_line import LogLineFilter
from isthmus.broker.net.log_sample import SECONDS, LogSampleFilter
from isthmus.broker.server import Options, Server

__all__ = ["serve"]

_log = logging.getLogger(__name__)

# The switch interval of threads: the sync thread, which waits for the disk without the GIL, must not wait another 5 ms, the
# default, to get it back (measured: p50 of a durable send falls from 7 to 2 ms under load).
_SWITCH_INTERVAL_SECONDS = 0.0005
# Messages make no reference cycles; the collector is needed only for those of connections, and runs rarely.
_GC_THRESHOLD = (50_000, 20, 100)


async def serve(namespaces: Sequence[Options], ready: Callable[[list[dict[str, Any]]], None]) -> None:
    """Run namespaces in this process until SIGTERM or SIGINT; each has a store, keys and ports of its own.

    Args:
        namespaces: the options of each.
        ready: called with the connection details of each, once clients can connect to all.
    """
    allow_many()
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    sampled, lines = LogSampleFilter(), LogLineFilter()  # in this order: a kind is a line's format
    for handler in logging.getLogger().handlers:
        handler.addFilter(sampled)
        handler.addFilter(lines)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with contextlib.AsyncExitStack() as stack:
        servers: list[Server] = []
        for options in namespaces:
            server = Server(replace(options, namespaces=len(namespaces)))
            await server.start()
            stack.push_async_callback(_stop, server, options)
            servers.append(server)
            _log.info("namespace started: data=%s ports=%s", options.data, server.ports)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLD)
        ready([server.describe() for server in servers])
        telling = asyncio.create_task(_tell_left_out(sampled))
        await stopped.wait()
        telling.cancel()


async def _tell_left_out(sampled: LogSampleFilter) -> None:
    while True:
        await asyncio.sleep(SECONDS)
        sampled.report()


async def _stop(server: Server, options: Options) -> None:
    await server.stop()
    _log.info("namespace stopped: data=%s", options.data)
