"""The readiness of the namespace that has a data folder of this machine open.

What it is: a request to `/health`, at the port that the process has recorded in its folder, for health checks of containers
and units. What it is not: a check of certificates: it sends no secret, and trusts the answer.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from pathlib import Path

from isthmus.broker.health import Health
from isthmus.broker.running import read_running

__all__ = ["ask_health", "wait_ready"]

_PAUSE_SECONDS = 0.2


def ask_health(data: Path, timeout_seconds: float = 4.0) -> Health:
    """The namespace's health; the status ``absent`` if none answers.

    Args:
        data: its data folder.
        timeout_seconds: for the answer.
    """
    running = read_running(data)
    if running is None:
        return Health("absent", f"No process is recorded as serving from '{data}'.")
    host, port = running["host"], running["ports"]["http"]
    if running["plain"]:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_seconds)
    else:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_seconds, context=context)
    try:
        connection.request("GET", "/health")
        answer = json.loads(connection.getresponse().read(65536))
        down = tuple(int(number) for number in answer.get("partition_stores_down", ()))
        zones_down = tuple(int(number) for number in answer.get("zones_down", ()))
        without_listener = int(answer.get("hybrid_connections_without_listener", 0))
        return Health(str(answer["status"]), str(answer.get("reason", "")), down, zones_down, without_listener)
    except (OSError, http.client.HTTPException) as error:
        return Health("absent", f"{host}:{port} does not answer: {error}")
    except (ValueError, KeyError, TypeError, AttributeError):
        return Health("absent", f"{host}:{port} does not answer like a namespace.")
    finally:
        connection.close()


def wait_ready(data: Path, seconds: float) -> Health:
    """Query until the namespace is ready, for so many seconds at most; returns the last answer."""
    limit = time.monotonic() + seconds
    while not (found := ask_health(data)).is_ready and time.monotonic() < limit:
        time.sleep(_PAUSE_SECONDS)
    return found
