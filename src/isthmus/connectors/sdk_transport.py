"""How the SDKs of Azure send their HTTP requests.

What it is: azure-core's transport, with what a request shows left as its client wrote it. What it is not: the transport of storage accounts
(`storage_transport`), which looks for proxies once.
Specification: requests documentation, "Authentication": the library puts a password of `.netrc` in the place of a header that is there, and
an entry `default` is for every host.

Invariants:
    I1. No password of `.netrc` takes the place of what a client shows, or goes to a service that it was not written for.
"""

from __future__ import annotations

from typing import Any

from azure.core.pipeline.transport import RequestsTransport

__all__ = ["SdkTransport"]


class SdkTransport(RequestsTransport):  # type: ignore[misc]  # azure-core types it lazily, as Any
    """A transport for the clients of one service; options are those of `RequestsTransport`."""

    def send(self, request: Any, **options: Any) -> Any:
        """Sends a request, and waits for the answer."""
        options["auth"] = _as_it_is
        return super().send(request, **options)


def _as_it_is(request: Any) -> Any:
    return request
