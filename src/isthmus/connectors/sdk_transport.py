"""How the SDKs of Azure send their HTTP requests.

What it is: azure-core's transport, which leaves the credentials of a request as its client wrote them. What it is not: the transport of
storage accounts (`storage_transport`), which looks up proxies once.
Specification: requests documentation, "Authentication": the library replaces an existing authorization header by a password of `.netrc`, and
an entry `default` applies to every host.

Invariants:
    I1. No password of `.netrc` replaces a client's credentials, or is sent to a service that it was not written for.
"""

from __future__ import annotations

from typing import Any

from azure.core.pipeline.transport import RequestsTransport

__all__ = ["SdkTransport"]


class SdkTransport(RequestsTransport):  # type: ignore[misc]  # azure-core types it lazily, as Any
    """A transport for the clients of one service; the options are those of `RequestsTransport`."""

    def send(self, request: Any, **options: Any) -> Any:
        """Sends a request, and waits for the answer."""
        options["auth"] = _as_it_is
        return super().send(request, **options)


def _as_it_is(request: Any) -> Any:
    return request
