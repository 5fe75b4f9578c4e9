"""The byte stream below a peer, as the peer sees it.

What it is: the protocol that the socket's shell and the WebSocket implement. What it is not: either of them.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["CLOSE_SECONDS", "Wire"]

# How long a client may take to read the last bytes: one that never does would keep its socket and them for ever.
CLOSE_SECONDS = 10.0


class Wire(Protocol):
    """The byte stream below a peer."""

    name: str
    """Address of the client, for the log."""

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them until they can be sent."""
        ...

    def close(self) -> None:
        """Send what was written, then close; a client that does not take it gets `CLOSE_SECONDS` for it."""
        ...

    def admit(self) -> None:
        """The client has shown a token or a key: it counts among strangers no more."""
        ...

    def pause_reading(self) -> None:
        """Take no more bytes from the client."""
        ...

    def resume_reading(self) -> None:
        """Take bytes again."""
        ...

    @property
    def is_writable(self) -> bool:
        """Whether little enough waits to be sent."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """How much waits to be sent."""
        ...
