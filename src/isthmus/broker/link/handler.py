"""What serves one link, as the connection sees it.

What it is: the events of a link with what a link does about them that has no use for one, so that the connection asks no
link for its kind. What it is not: any link's work.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from isthmus.amqp import TransferParts, Transfers
from isthmus.broker.link.departure import Owed
from isthmus.broker.security.access import Access
from isthmus.broker.security.grant import Right

if TYPE_CHECKING:
    from isthmus.broker.link.sender_link import SenderLink

__all__ = ["LinkHandler", "LinkUse", "Need", "NodeLink", "Rounds"]


class LinkUse(NamedTuple):
    """What a client is to whom a link serves.

    Attributes:
        client: ``publisher`` or ``consumer``.
        service: ``Message`` or ``EventHub``: their links may be idle for times of their own.
    """

    client: str
    service: str


class Rounds(Protocol):
    """The rounds in which queues are spread over links (`isthmus.broker.namespace`)."""

    def remove_sender_link(self, sender_link: SenderLink) -> None:
        """Let a receiving link go."""
        ...


class LinkHandler:
    """What serves one link.

    Attributes:
        owed: outcomes that the link's end is told behind; None where there are none.
        grants: how often the client granted credit.
        use: what the link serves; None where it is never idle.
    """

    owed: Owed | None = None
    grants = 0
    use: LinkUse | None = None

    @property
    def activity(self) -> object:
        """Changes whenever something moves on the link."""
        return None

    @property
    def owes(self) -> bool:
        """Whether outcomes of messages that were taken are still to be told, or messages that were deleted to be sent; not outcomes of settlements."""
        return False

    def on_transfers(self, event: Transfers) -> None:
        """Take a run of deliveries."""

    def on_parts(self, event: TransferParts) -> None:
        """Take what has come of a large message."""

    def on_disposed(self, first: int, last: int, state: Any, settled: bool) -> None:
        """The client disposed of deliveries first to last."""

    def on_credit(self) -> None:
        """The client granted credit, or the session's window moved."""

    def on_writable(self) -> None:
        """The connection takes bytes again."""

    def check_open(self) -> None:
        """Refuse where the link cannot go on.

        Raises:
            IsthmusError: its entity was deleted or disabled.
        """

    def on_tick(self, now: float) -> None:
        """Do what time asks for; `now` in monotonic seconds."""

    def is_permitted(self, access: Access) -> bool:
        """Whether the connection's tokens still permit the link."""
        return access.has_grant

    def when_sent(self, run: Callable[[], None]) -> None:
        """Call once nothing is on its way that only this link can bring to the client; the link is to be ended then."""
        run()

    def close(self) -> None:
        """The link is gone."""

    def withdraw(self, rounds: Rounds) -> None:
        """The link is gone: take part in no round any more."""


class Need(Enum):
    """What a client needs for its links with a node."""

    NOTHING = "nothing"
    TOKEN = "any valid token: each request shows its right"
    RIGHT = "any right on the node's entity"


class NodeLink(LinkHandler):
    """A link to or from a node that answers requests.

    Attributes:
        node: its path.
        needs: what permits the link.
    """

    node: str
    needs = Need.RIGHT

    def is_permitted(self, access: Access) -> bool:
        if self.needs is Need.RIGHT:
            return any(access.permits(self.node, right) for right in Right)
        return self.needs is Need.NOTHING or access.has_grant
