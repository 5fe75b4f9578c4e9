"""The kind `queuestorage`: an account of Azure Queue Storage.

What it is: the settings of an account and of what is read and written there, and what is wrong with them together. What it is not: the
connector's other options (`isthmus.connectors.queuestorage.option`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from isthmus.topology.file.setting import Kind, Setting
from isthmus.topology.identity import IDENTITY, IDENTITY_SETTINGS
from isthmus.topology.kind.base import REFERENCE, NamespaceKind, SettingFault, Shape

__all__ = ["QUEUE_STORAGE", "queue_storage_faults"]

# Azure: the longest that a message is invisible.
LONGEST_SECONDS = 7 * 24 * 3600
_EXAMPLE = "https://flights.queue.core.windows.net"
# Neither a user nor a query, which a SAS would be: an address ends up in logs.
_ADDRESS = re.compile(r"https?://[^/?#@\s]+(/[^?#@\s]*)?")


def queue_storage_faults(values: Mapping[str, Any], write: Callable[[str, str], str]) -> Iterator[SettingFault]:
    """What is wrong with the settings of an account together; arguments as in `NamespaceKind.faults`."""
    if bool(values["connection"]) == bool(values["account_url"]):
        what = (
            "both connection and account_url are" if values["connection"] else "neither connection nor account_url is"
        )
        hint = f"write {write('connection', 'env:NAME')}, or {write('account_url', 'https://…')} and identity"
        yield "connection", f"{what} given", hint
    elif values["account_url"] and _ADDRESS.fullmatch(str(values["account_url"])) is None:
        hint = f"write {write('account_url', _EXAMPLE)}; a key or a SAS goes into connection"
        yield "account_url", "account_url is no address, or holds a secret", hint


QUEUE_STORAGE = NamespaceKind(
    name="queuestorage",
    title="Azure Queue Storage",
    shape=Shape.QUEUE,
    takes_dead_letters=True,
    fans_out=False,
    granted_by={
        "listen": "role Storage Queue Data Message Processor on the queue, Storage Queue Data Contributor on its poison queue",
        "send": "role Storage Queue Data Message Sender and Reader on the queue",
        "manage": "role Storage Queue Data Contributor on the account",
    },
    faults=queue_storage_faults,
    settings=(
        Setting(
            name="connection",
            kind=Kind.REFERENCE,
            secret=True,
            default="",
            example="env:STORAGE_CONNECTION",
            description=f"Connection string of the storage account, with its key or a SAS. {REFERENCE}",
        ),
        Setting(
            name="account_url",
            kind=Kind.TEXT,
            default="",
            example=_EXAMPLE,
            description="Instead of `connection`: the account's queue endpoint, with `identity`.",
        ),
        IDENTITY,
        *IDENTITY_SETTINGS,
        Setting(
            name="encoding",
            kind=Kind.CHOICE,
            choices=("base64", "text"),
            default="base64",
            description="How messages are written in the queue: `base64`, as Azure Functions and most SDKs have it, or as plain `text`.",
        ),
        Setting(
            name="visibility_seconds",
            kind=Kind.INTEGER,
            default=60,
            minimum=2,
            maximum=LONGEST_SECONDS,
            description="How long a message that was read stays invisible to others; renewed while it is on its way, and so how "
            "late it comes again when the reader dies.",
        ),
        Setting(
            name="max_dequeue_count",
            kind=Kind.INTEGER,
            default=100,
            minimum=0,
            description="A message that was read more often is put into the poison queue. Reading counts also when a route pauses or is "
            "restarted. 0: none is.",
        ),
        Setting(
            name="in_flight",
            kind=Kind.INTEGER,
            default=1000,
            minimum=1,
            maximum=100_000,
            description="Messages that are invisible for this reader at once; each takes a request to renew.",
        ),
        Setting(
            name="settling",
            kind=Kind.INTEGER,
            default=8,
            minimum=1,
            maximum=64,
            description="Requests that delete and renew at a time: each concerns one message.",
        ),
        Setting(
            name="poll_seconds",
            kind=Kind.NUMBER,
            default=1.0,
            minimum=0.05,
            maximum=60,
            description="How long to wait at most before an empty queue is read again.",
        ),
        Setting(
            name="form",
            kind=Kind.CHOICE,
            choices=("envelope", "cloudevents", "body"),
            default="envelope",
            description="What a message becomes: `envelope` (JSON with its properties) or `cloudevents` (CloudEvents 1.0, JSON), both of which "
            "the way back opens; or its `body` alone, without properties and provenance.",
        ),
        Setting(
            name="parallel",
            kind=Kind.INTEGER,
            default=1,
            minimum=1,
            maximum=64,
            description="Messages that are put at a time. With more than one they do not keep their order.",
        ),
        Setting(
            name="time_to_live_seconds",
            kind=Kind.INTEGER,
            default=0,
            minimum=0,
            description="How long a message lives that has no TimeToLive of its own. 0: for ever.",
        ),
        Setting(
            name="timeout_seconds",
            kind=Kind.NUMBER,
            default=30.0,
            minimum=1,
            maximum=300,
            description="How long one request may take.",
        ),
    ),
)
