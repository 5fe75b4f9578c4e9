"""AMQP over sockets, client side: TCP and TLS, SASL, claims-based security, heartbeats, links; blocking or polled.

`Client` is one connection; `Sender`, `Receiver` and `Management` are what it carries. An owner that waits on several
things at once polls `Client.fileno()` and calls `Client.service()`.
"""

from isthmus.transport.backoff import Backoff
from isthmus.transport.client import Client
from isthmus.transport.credential import (
    Credential,
    IdentityCredential,
    NoCredential,
    SharedKeyCredential,
    SignatureCredential,
    Token,
)
from isthmus.transport.endpoint import Endpoint, Login
from isthmus.transport.error import TransportError, error_from
from isthmus.transport.management import Management
from isthmus.transport.receiver import Receiver
from isthmus.transport.request import Reply, RequestLink
from isthmus.transport.sender import Outcome, Sender
from isthmus.transport.terms import LinkTerms

__all__ = [
    "Backoff",
    "Client",
    "Credential",
    "Endpoint",
    "IdentityCredential",
    "LinkTerms",
    "Login",
    "Management",
    "NoCredential",
    "Outcome",
    "Receiver",
    "Reply",
    "RequestLink",
    "Sender",
    "SharedKeyCredential",
    "SignatureCredential",
    "Token",
    "TransportError",
    "error_from",
]
