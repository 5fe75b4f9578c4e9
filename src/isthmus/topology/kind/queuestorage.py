"""The kind `queuestorage`: an account of Azure Queue Storage.

What it is: the settings of an account and of reading and writing there, and the faults of their combination. What it is not: the
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
# Neither a user nor a query, which may be a SAS: an address appears in logs.
_ADDRESS = re.compile(r"https?://[^/?#@\s]+(/[^?#@\s]*)?")


def queue_storage_faults(values: Mapping[str, Any], write: Callable[[str, str], str]) -> Iterator[SettingFault]:
    """The faults of an account's combined settings; arguments as in `NamespaceKind.faults`."""
    if bool(values["connection"]) == bool(values["account_url"]):
        what = (
            "both connection and account_url are" if values["connection"] else "neither connection nor account_url is"
        )
        hint = f"write {write('connection', 'env:NAME')}, or {write('account_url', 'https://…')} and identity"
        yield "connection", f"{what} given", hint
    elif values["account_url"] and _ADDRESS.fullmatch(str(values["account_url"])) is None:
        hint = f"write {write('account_url', _EXAMPLE)}; write a key or a SAS into connection"
        yield "account_url", "account_url is no address, or contains a secret", hint


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
            description="The encoding of messages in the queue: `base64`, as Azure Functions and most SDKs use it, or plain `text`.",
        ),
        Setting(
            name="visibility_seconds",
            kind=Kind.INTEGER,
            default=60,
            minimum=2,
            maximum=LONGEST_SECONDS,
            description="How long a received message stays invisible to others; renewed while the route has it. It is also how "
            "late it is delivered again when the reader dies.",
        ),
        Setting(
            name="max_dequeue_count",
            kind=Kind.INTEGER,
            default=100,
            minimum=0,
            description="A message that was received more often is moved to the poison queue. Receiving counts also when a "
            "route pauses or is "
            "restarted. 0: never.",
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
            description="Concurrent requests that delete and renew; each concerns one message.",
        ),
        Setting(
            name="poll_seconds",
            kind=Kind.NUMBER,
            default=1.0,
            minimum=0.05,
            maximum=60,
            description="The longest wait before an empty queue is read again.",
        ),
        Setting(
            name="form",
            kind=Kind.CHOICE,
            choices=("envelope", "cloudevents", "body"),
            default="envelope",
            description="The format of a message: `envelope` (JSON with its properties) or `cloudevents` (CloudEvents 1.0, "
            "JSON), both of which "
            "the source decodes again; or its `body` alone, without properties and provenance.",
        ),
        Setting(
            name="parallel",
            kind=Kind.INTEGER,
            default=1,
            minimum=1,
            maximum=64,
            description="Concurrent requests that send. With more than one, messages do not keep their order.",
        ),
        Setting(
            name="time_to_live_seconds",
            kind=Kind.INTEGER,
            default=0,
            minimum=0,
            description="The time to live of a message without TimeToLive. 0: for ever.",
        ),
        Setting(
            name="timeout_seconds",
            kind=Kind.NUMBER,
            default=30.0,
            minimum=1,
            maximum=300,
            description="Time limit of one request.",
        ),
    ),
)
