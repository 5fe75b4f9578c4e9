"""A peer's interface to its byte stream.

What it is: the protocol that the socket's shell and the WebSocket implement. What it is not: either of them.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["CLOSE_SECONDS", "Wire"]

# How long a client may take to read the last bytes: one that never reads would keep its socket and buffer forever.
CLOSE_SECONDS = 10.0


class Wire(Protocol):
    """The byte stream of a peer."""

    name: str
    """Address of the client, for the log."""

    def write(self, data: bytes) -> None:
        """Sends bytes, or buffers them until they can be sent."""
        ...

    def close(self) -> None:
        """Sends the buffered bytes, then closes; at the latest after `CLOSE_SECONDS`."""
        ...

    def admit(self) -> None:
        """The client has shown a token or a key, and no longer counts as a stranger."""
        ...

    def pause_reading(self) -> None:
        """Stops reading from the client."""
        ...

    def resume_reading(self) -> None:
        """Reads again."""
        ...

    @property
    def is_writable(self) -> bool:
        """Whether the unsent bytes are below the limit."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that wait to be sent."""
        ...
