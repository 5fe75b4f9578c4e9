"""The settings of a listener, which kinds have whose events are sent to them by HTTP.

What it is: where it listens, what it asks for, and where it keeps what came. What it is not: the listener (`isthmus.connectors.listen`).
"""

from __future__ import annotations

from isthmus.topology.file.setting import Kind, Setting
from isthmus.topology.kind.base import REFERENCE

__all__ = ["LISTENER"]

LISTENER = (
    Setting(
        name="listen",
        kind=Kind.TEXT,
        default="",
        example="0.0.0.0:8443",
        description="Where the listener listens: address and port. Events are posted to the path that the entity's name is.",
    ),
    Setting(
        name="spool",
        kind=Kind.PATH,
        default="",
        example="/var/lib/isthmus/hooks",
        description="Folder, on a disk of the machine that listens: a request is answered once its events are there. One folder for each "
        "listener.",
    ),
    Setting(
        name="auth",
        kind=Kind.CHOICE,
        choices=("none", "bearer", "hmac"),
        default="none",
        description="How requests have to prove where they come from: not, by a `bearer` token, or by an `hmac` signature.",
    ),
    Setting(
        name="secret",
        kind=Kind.REFERENCE,
        secret=True,
        default="",
        example="env:HOOK_SECRET",
        description=f"The token, or the key of the signature. {REFERENCE}",
    ),
    Setting(
        name="signature",
        kind=Kind.CHOICE,
        choices=("standard", "sha256"),
        default="standard",
        description="With hmac: `standard`, the headers of Standard Webhooks, or `sha256`, the header X-Hub-Signature-256.",
    ),
    Setting(
        name="certificate_file",
        kind=Kind.PATH,
        default="",
        example="hook/server.pem",
        description="The listener's certificate and those that prove it, PEM; without, it listens without TLS.",
    ),
    Setting(
        name="key_file",
        kind=Kind.PATH,
        default="",
        example="hook/server-key.pem",
        description="The certificate's private key, PEM; empty: it is in `certificate_file`.",
    ),
    Setting(
        name="max_body_bytes",
        kind=Kind.INTEGER,
        default=1 << 20,
        minimum=1,
        maximum=256 << 20,
        description="The largest body of a request that is taken; a larger one is answered 413.",
    ),
    Setting(
        name="spool_bytes",
        kind=Kind.INTEGER,
        default=1 << 30,
        minimum=4096,
        description="How much the folder may hold; then requests are answered 503 with Retry-After.",
    ),
)
