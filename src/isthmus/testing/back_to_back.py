"""Two AMQP engines joined back to back, without a socket, for tests of the protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from isthmus.amqp import Connection, Event, LinkAttaching, Role, SaslInit

__all__ = ["BackToBack"]

E = TypeVar("E")


class BackToBack:
    """A client and a server engine; `pump` passes bytes until neither has any.

    Args:
        cut: how the bytes of one write are cut into reads.
        server: further arguments of the server's `Connection`.

    Attributes:
        at_client: events that the client reported.
        at_server: events that the server reported.
        accept: whether the server accepts links by itself, granting `credit` to senders.
    """

    def __init__(self, cut: Callable[[bytes], list[bytes]] = lambda data: [data], **server: Any) -> None:
        self.client = Connection(server=False, container_id="client", hostname="host")
        self.server = Connection(server=True, container_id="server", sasl=("ANONYMOUS", "PLAIN"), **server)
        self.cut = cut
        self.at_client: list[Event] = []
        self.at_server: list[Event] = []
        self.from_client: list[bytes] = []
        self.accept = True
        self.credit = 100

    def open(self) -> BackToBack:
        """Goes through the handshake with SASL ANONYMOUS."""
        self.client.start()
        self.pump()
        return self

    def pump(self, now: float = 0.0) -> None:
        """Passes bytes both ways until neither side has any."""
        while True:
            up = self.client.take()
            self.from_client.append(up)
            for piece in self.cut(up) if up else []:
                for event in self.server.receive(piece, now):
                    self._serve(event)
            down = self.server.take()
            for piece in self.cut(down) if down else []:
                self.at_client.extend(self.client.receive(piece, now))
            if not up and not down:
                return

    def _serve(self, event: Event) -> None:
        self.at_server.append(event)
        if isinstance(event, SaslInit):
            for behind in self.server.sasl_outcome(event.mechanism == "ANONYMOUS" or event.response == b"\0name\0key"):
                self._serve(behind)
        elif isinstance(event, LinkAttaching) and self.accept:
            event.link.accept(max_message_size=1 << 20)
            if event.link.role is Role.RECEIVER:
                event.link.grant(self.credit)

    def seen(self, kind: type[E], at: str = "server") -> list[E]:
        """The events of one kind that the server, or with `at` = "client" the client, reported."""
        events = self.at_server if at == "server" else self.at_client
        return [event for event in events if isinstance(event, kind)]
