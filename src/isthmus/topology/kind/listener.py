"""The settings of an HTTP listener, for kinds whose events are pushed to it.

What it is: its address, the proof it requires, and its storage for events. What it is not: the listener (`isthmus.connectors.listen`).
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
        description="Address and port of the listener. Events are posted to the entity's name as path.",
    ),
    Setting(
        name="spool",
        kind=Kind.PATH,
        default="",
        example="/var/lib/isthmus/hooks",
        description="Folder, on a disk of the machine that listens: a request is answered once its events are stored there. "
        "One folder for each "
        "listener.",
    ),
    Setting(
        name="auth",
        kind=Kind.CHOICE,
        choices=("none", "bearer", "hmac"),
        default="none",
        description="How requests have to prove their origin: not at all, by a `bearer` token, or by an `hmac` signature.",
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
        description="The listener's certificate and its chain, PEM; without it, the listener uses no TLS.",
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
        description="The largest accepted body of a request; a larger one is answered with 413.",
    ),
    Setting(
        name="spool_bytes",
        kind=Kind.INTEGER,
        default=1 << 30,
        minimum=4096,
        description="The largest size of the folder; beyond it, requests are answered with 503 and Retry-After.",
    ),
)
