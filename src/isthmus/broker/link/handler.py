"""The handler of one link: the connection's interface to it.

What it is: the events of a link, with defaults for links that do not need one, so that the connection need not distinguish
kinds of links. What it is not: any link's work.
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
    """The use of a link: the client's role and the service.

    Attributes:
        client: ``publisher`` or ``consumer``.
        service: ``Message`` or ``EventHub``: their links have different idle time-outs.
    """

    client: str
    service: str


class Rounds(Protocol):
    """The rounds that distribute queues over links (`isthmus.broker.namespace`)."""

    def remove_sender_link(self, sender_link: SenderLink) -> None:
        """Removes a receiving link."""
        ...


class LinkHandler:
    """The handler of one link.

    Attributes:
        owed: outcomes after which the link's end is sent; None where there are none.
        takes_no_more: whether the connection is about to be closed from this side.
        grants: how often the client granted credit.
        use: the link's use; None where it has no idle time-out.
    """

    owed: Owed | None = None
    takes_no_more = False
    grants = 0
    use: LinkUse | None = None

    @property
    def activity(self) -> object:
        """A value that changes with all activity on the link."""
        return None

    @property
    def owes(self) -> bool:
        """Whether outcomes of accepted messages, or messages that were deleted, are still to be sent; not outcomes of settlements."""
        return False

    def on_transfers(self, event: Transfers) -> None:
        """Take a run of deliveries."""

    def on_parts(self, event: TransferParts) -> None:
        """Takes parts of a large message."""

    def on_disposed(self, first: int, last: int, state: Any, settled: bool) -> None:
        """The client disposed of deliveries first to last."""

    def on_credit(self) -> None:
        """The client granted credit, or the session's window moved."""

    def on_writable(self) -> None:
        """The connection takes bytes again."""

    def check_open(self) -> None:
        """Raises if the link cannot continue.

        Raises:
            IsthmusError: its entity was deleted or disabled.
        """

    def on_tick(self, now: float) -> None:
        """Runs the link's timers; `now` in monotonic seconds."""

    def is_permitted(self, access: Access) -> bool:
        """Whether the connection's tokens still permit the link."""
        return access.has_grant

    def when_sent(self, run: Callable[[], None]) -> None:
        """Calls once everything that only this link can deliver to the client has been sent; the link is ended then."""
        run()

    def close(self) -> None:
        """The link is gone."""

    def withdraw(self, rounds: Rounds) -> None:
        """The link is gone: it takes part in no round any more."""


class Need(Enum):
    """The rights that a client needs for its links with a node."""

    NOTHING = "nothing"
    TOKEN = "any valid token: each request shows its right"
    RIGHT = "any right on the node's entity"


class NodeLink(LinkHandler):
    """A link to or from a node that answers requests.

    Attributes:
        node: its path.
        needs: the rights that permit the link.
    """

    node: str
    needs = Need.RIGHT

    def is_permitted(self, access: Access) -> bool:
        if self.needs is Need.RIGHT:
            return any(access.permits(self.node, right) for right in Right)
        return self.needs is Need.NOTHING or access.has_grant
