"""Requests to Event Grid, and their authentication.

What it is: the address of each operation, the header of a key or a token, and the text of a refusal. What it is not: the use by a source or a
target. Specification: Microsoft Learn, "Azure Event Grid data plane REST API" (2024-06-01) and "Publish events to custom
topics".

Invariants:
    I1. No text contains a key or a token.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from isthmus.connectors.eventgrid.option import ServiceOptions
from isthmus.connectors.http.client import Answer, HttpClient
from isthmus.connectors.identity import TokenSource, shared_credential
from isthmus.connectors.secret import Secret, resolve
from isthmus.errors import InvalidArgumentError
from isthmus.transport.credential import told_of_token

__all__ = ["API_VERSION", "EventGrid"]

API_VERSION = "2024-06-01"
TOPIC_API_VERSION = "2018-01-01"
SCOPE = "https://eventgrid.azure.net/.default"
# A receive returns 100 events of 1 MiB at most.
_ANSWER_BYTES = 128 << 20
# A new token is requested so long before the last one expires.
_EARLY_SECONDS = 300.0


class EventGrid:
    """One namespace, or one custom topic.

    Args:
        options: the options that reach it.
        wait_seconds: how long the service may wait for an event before it answers.

    Raises:
        IsthmusError: the reference cannot be resolved, or the address is invalid.
        OSError: the certificates cannot be read.
    """

    def __init__(self, options: ServiceOptions, wait_seconds: float = 0.0) -> None:
        self._options = options
        self._key: Secret | None = resolve(options.key) if options.key else None
        self._credential: TokenSource | None = None
        self._token = ""
        self._token_until = 0.0
        if self._key is None:
            self._credential = shared_credential(options.identity)
        self._http = HttpClient(
            options.endpoint,
            options.timeout_seconds + wait_seconds,
            ca_file=options.ca_file,
            answer_bytes=_ANSWER_BYTES,
        )

    @property
    def identity(self) -> str:
        """The address of the namespace, or of the topic."""
        return self._http.address

    @property
    def secret(self) -> str:
        """The credential of requests, which is removed from texts of answers."""
        return self._key.reveal() if self._key is not None else self._token

    def connect(self) -> None:
        """Connects.

        Raises:
            OSError: it cannot connect.
        """
        self._http.connect()

    def publish(self, topic: str, content_type: str, events: Sequence[bytes]) -> Answer:
        """Publishes events, each as JSON.

        Raises:
            OSError: no answer arrived.
        """
        if self._options.tier == "topic":
            path = f"/api/events?api-version={TOPIC_API_VERSION}"
        else:
            path = f"/topics/{quote(topic, safe='')}:publish?api-version={API_VERSION}"
        return self._post(path, content_type, b"[" + b",".join(events) + b"]")

    def ask(self, topic: str, subscription: str, operation: str, body: Any = None, query: str = "") -> Answer:
        """`receive`, `acknowledge`, `release`, `reject` or `renewLock`.

        Raises:
            OSError: no answer arrived.
        """
        resource = f"/topics/{quote(topic, safe='')}/eventsubscriptions/{quote(subscription, safe='')}"
        path = f"{resource}:{operation}?api-version={API_VERSION}{query}"
        content = b"" if body is None else json.dumps(body).encode()
        return self._post(path, "application/json; charset=utf-8", content, needs_all=True)

    def close(self) -> None:
        """Closes it."""
        self._http.close()

    def _post(self, path: str, content_type: str, body: bytes, *, needs_all: bool = False) -> Answer:
        headers = {"content-type": content_type, "user-agent": "isthmus", **self._proof()}
        try:
            return self._http.request("POST", path, headers, body, needs_all=needs_all)
        except ValueError:
            text = (
                f"{self.identity}: {self._options.key or 'the token'} contains characters that are invalid in a header"
            )
            raise InvalidArgumentError(text) from None

    def _proof(self) -> dict[str, str]:
        if self._key is not None:
            if self._options.tier == "topic":
                return {"aeg-sas-key": self._key.reveal()}
            return {"authorization": f"SharedAccessKey {self._key.reveal()}"}
        assert self._credential is not None
        now = time.time()
        if now >= self._token_until - _EARLY_SECONDS:
            from azure.core.exceptions import AzureError

            try:
                token = self._credential.get_token(SCOPE)
            except AzureError as error:
                raise OSError(f"no token for Event Grid: {told_of_token(error)}") from None
            self._token, self._token_until = token.token, float(token.expires_on)
        return {"authorization": f"Bearer {self._token}"}
