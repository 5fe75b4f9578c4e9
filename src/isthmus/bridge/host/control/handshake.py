"""The handshake of the control connection: each end proves that it has the key of the run, and neither sends it.

What it is: a challenge and response by HMAC (RFC 2104) with SHA-256, as two machines: bytes in, bytes out, no sockets.
    client to server  MAGIC, client nonce
    server to client  MAGIC, server nonce, HMAC(key, "server", client nonce, server nonce)
    client to server  HMAC(key, "client", client nonce, server nonce)
Frames follow at once. What it is not: encryption. It refuses clients without the key; like Spark's own connections by default, it
does not protect against an attacker who can change packets between driver and executors.

Invariants:
    I1. A server accepts no client without the key, and a client no server without it.
    I2. Nonces are fresh in each handshake, so that a recorded one is useless; because of the label of each end, one end's proof
        cannot be used as the other's.
    I3. No byte beyond the handshake is requested (`needed`), and no other byte is kept.
    I4. Proofs are compared in constant time, and no error contains the key, a proof or a nonce.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from isthmus.errors import IsthmusError

__all__ = [
    "MAGIC",
    "ClientHandshake",
    "ControlError",
    "ControlKeyError",
    "NotControlError",
    "ServerHandshake",
]

MAGIC = b"ISTHMUS\x01"
NONCE_BYTES = 32
PROOF_BYTES = hashlib.sha256().digest_size


class ControlError(IsthmusError):
    """The control connection to the driver cannot be made."""

    code = "control-connection"
    retryable = True


class NotControlError(ControlError):
    """The other end is not a control port."""

    code = "control-connection-protocol"


class ControlKeyError(ControlError):
    """The other end has another key."""

    code = "control-connection-key"
    retryable = False


def _proof(token: str, label: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return hmac.digest(token.encode(), b"isthmus control " + label + b"\0" + client_nonce + server_nonce, "sha256")


class ClientHandshake:
    """The reader's end.

    Args:
        token: the key of the run.

    Attributes:
        needed: how many bytes have to be received next.
        is_done: whether frames may follow.
    """

    def __init__(self, token: str) -> None:
        self.needed = len(MAGIC) + NONCE_BYTES + PROOF_BYTES
        self.is_done = False
        self._token = token
        self._nonce = secrets.token_bytes(NONCE_BYTES)

    def greeting(self) -> bytes:
        """The bytes to send first."""
        return MAGIC + self._nonce

    def receive(self, data: bytes) -> bytes:
        """What to send after exactly `needed` bytes came.

        Raises:
            NotControlError: they are not a control port's.
            ControlKeyError: the server has another key.
        """
        if not data.startswith(MAGIC):
            raise NotControlError("what came is not the greeting of a control port")
        server_nonce, proof = data[len(MAGIC) : -PROOF_BYTES], data[-PROOF_BYTES:]
        if not hmac.compare_digest(proof, _proof(self._token, b"server", self._nonce, server_nonce)):
            raise ControlKeyError("the server has another key")
        self.needed, self.is_done = 0, True
        return _proof(self._token, b"client", self._nonce, server_nonce)


class ServerHandshake:
    """The driver's end.

    Args:
        token: the key of the run.

    Attributes:
        needed: how many bytes have to be received next.
        is_done: whether the client has proved that it has the key.
    """

    def __init__(self, token: str) -> None:
        self.needed = len(MAGIC) + NONCE_BYTES
        self.is_done = False
        self._token = token
        self._expected = b""

    def receive(self, data: bytes) -> bytes:
        """What to send after exactly `needed` bytes came.

        Raises:
            NotControlError: they are not a client's.
            ControlKeyError: the client has another key.
        """
        if not self._expected:
            if not data.startswith(MAGIC):
                raise NotControlError("what came is not the greeting of a reader")
            client_nonce, server_nonce = data[len(MAGIC) :], secrets.token_bytes(NONCE_BYTES)
            self._expected = _proof(self._token, b"client", client_nonce, server_nonce)
            self.needed = PROOF_BYTES
            return MAGIC + server_nonce + _proof(self._token, b"server", client_nonce, server_nonce)
        if not hmac.compare_digest(data, self._expected):
            raise ControlKeyError("the client has another key")
        self.needed, self.is_done = 0, True
        return b""
