"""One link: names, termini, credit, and the deliveries that go over it (spec 2.6).

What it is: the state of one link on one side, and the calls by which its owner acts on it. What it is not: queues,
retries or locks; the owner keeps those. A little over 400 lines: sending and receiving share credit, state and detaching.

Invariants:
    I1. A sender never sends beyond the link's credit (except after `overdraw`) or the session's window; `sendable` says how much
        may be sent.
    I2. A receiver hands over no delivery beyond the credit it granted; a peer that exceeds it is detached. A delivery
        that was sent before the peer received a flow that lowers the credit is handed over (spec 2.6.7).
    I3. delivery_count follows the sender; credit is kept relative to it (spec 2.6.7).
    I4. A delivery that is sent in parts is completed before the link begins another.
    I5. A sender's flow is written after the last frame of every delivery that it counts: these frames may wait for the
        session's window, or for the next part of their delivery.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from isthmus.amqp.frame import MASK32, Shape, TransferWriter, accepted_frame
from isthmus.amqp.partial_delivery import PartialDelivery
from isthmus.amqp.performative import Accepted, Attach, Detach, Disposition, Error, Flow, Source, Target
from isthmus.errors import ProtocolError

if TYPE_CHECKING:
    from isthmus.amqp.amqp_session import AmqpSession

__all__ = ["Link", "Role", "left_of"]


def left_of(granted: int, counted_from: int, now: int) -> int:
    """What is left of a grant: of credit, or of a window (spec 2.6.7, 2.5.6).

    Args:
        granted: how many the peer takes, up to 2^32 − 1.
        counted_from: the serial number that the peer knew when it granted them.
        now: the serial number that has been reached.
    """
    used = ((now - counted_from + 0x80000000) & MASK32) - 0x80000000
    return min(max(0, granted - used), MASK32)


class Role(Enum):
    """Which end of the link this side is."""

    SENDER = False
    RECEIVER = True


class Link:
    """One link of a session.

    Attributes:
        name: the link's name, as the side that attached first gave it.
        role: our end of it.
        peer: the attach that the peer sent; None until it came.
        source: the source terminus; on the server side, as the peer asked for it.
        target: the target terminus.
        properties: link properties that the peer sent.
        max_message_size_bytes: what a delivery may hold at most; 0 is no limit. Ours when we receive, else the peer's.
        credit: deliveries that may still be received or sent.
        drain: whether the receiver asked to use up the credit at once.
        peer_credit: a receiver's: the credit that the sender reported last; None before its first report.
        delivery_count: the sender's count, modulo 2^32.
        detached: whether one of both sides has detached, or this side is about to (`begin_detach`).
        peer_detached: whether the peer has.
        context: free for the owner.
        parts_above_bytes: a receiver's: single messages larger than this are reported as `TransferParts`; 0 is none.
        is_sending: whether a delivery that is sent in parts is not whole yet.
        lost_state: of the delivery that was dropped as this side ended the link.
    """

    def __init__(self, amqp_session: AmqpSession, name: str, role: Role, handle: int) -> None:
        self.amqp_session = amqp_session
        self.name = name
        self.role = role
        self.handle = handle
        self.peer: Attach | None = None
        self.source: Any = None
        self.target: Any = None
        self.properties: dict[Any, Any] | None = None
        self.desired_capabilities: list[str] = []
        self.snd_settle_mode = 2
        self.rcv_settle_mode = 0
        self.max_message_size_bytes = 0
        self.credit = 0
        self._crossing = 0  # of credit that was taken back: deliveries may be on their way already
        self.drain = False
        self.peer_credit: int | None = None
        self.delivery_count = 0
        self.attached = False
        self.detached = False
        self.peer_detached = False
        self._detach: Detach | None = None  # decided, not sent yet
        self.context: Any = None
        self.partial: PartialDelivery | None = None
        self.lost_state: Any = None
        self.shape: Shape | None = None
        self.shape_meaning = (False, 0)  # settled and message format of transfers of that shape
        self.parts_above_bytes = 0
        self._writer = TransferWriter(amqp_session.channel, handle)
        self._sending: tuple[bytes, int, int, bool] | None = None
        self._is_flow_due = False  # after the delivery that is sent in parts

    # ---- attaching and detaching

    def accept(
        self,
        *,
        source: Any = None,
        target: Any = None,
        max_message_size: int | None = None,
        properties: dict[Any, Any] | None = None,
        offered_capabilities: list[str] | None = None,
        initial_delivery_count: int = 0,
    ) -> None:
        """Answers the peer's attach; source and target are echoed unless given."""
        peer = self._peer_attach()
        self.max_message_size_bytes = (
            (max_message_size or 0) if self.role is Role.RECEIVER else int(peer.max_message_size or 0)
        )
        self.attached = True
        if self.role is Role.SENDER:
            self.delivery_count = initial_delivery_count
        self._send_attach(
            source if source is not None else self.source,
            target if target is not None else self.target,
            max_message_size,
            properties,
            offered_capabilities,
            None,
            initial_delivery_count if self.role is Role.SENDER else None,
        )

    def refuse(self, error: Error) -> None:
        """Answers the peer's attach with null termini and detaches with `error`."""
        self._peer_attach()
        self.answer_null()
        self.detach(error)

    def answer_null(self) -> None:
        """Answers the peer's attach with a null terminus of ours: a detach follows."""
        sender = self.role is Role.SENDER
        self.attached = True
        self._send_attach(
            None if sender else self.source,
            self.target if sender else None,
            None,
            None,
            None,
            None,
            0 if sender else None,
        )

    def _peer_attach(self) -> Attach:
        if self.peer is None or self.attached:
            raise ProtocolError("only an attach of the peer's that was not answered yet can be answered")
        return self.peer

    def _send_attach(
        self,
        source: Any,
        target: Any,
        max_message_size: int | None,
        properties: dict[Any, Any] | None,
        offered_capabilities: list[str] | None,
        desired_capabilities: list[str] | None,
        initial_delivery_count: int | None,
    ) -> None:
        self.amqp_session.write(
            Attach(
                self.name,
                self.handle,
                self.role.value,
                self.snd_settle_mode,
                self.rcv_settle_mode,
                source,
                target,
                None,
                False,
                initial_delivery_count,
                max_message_size,
                offered_capabilities,
                desired_capabilities,
                properties,
            )
        )

    def detach(self, error: Error | None = None, closed: bool = True) -> None:
        """Detaches; deliveries that still arrive are dropped. Does nothing on a link already detached."""
        self.begin_detach(error, closed)
        self.finish_detach()

    def begin_detach(self, error: Error | None = None, closed: bool = True) -> None:
        """Ends the link, except for its Detach frame: deliveries that still arrive are dropped, nothing more is sent.

        Deliveries received or sent before can be disposed of until `finish_detach`.
        """
        if self.detached:
            return
        self.detached = True
        self._detach = Detach(self.handle, closed, error)
        self.lost_state = None if self.partial is None else self.partial.state
        self.drop_partial()
        self.amqp_session.forget_link(self)

    def finish_detach(self) -> None:
        """Sends the Detach frame of `begin_detach`, or the answer to the peer's; does nothing if there is none to send."""
        detach, self._detach = self._detach, None
        if detach is None:
            return
        if not self.amqp_session.end_sent:
            self.amqp_session.write(detach)
        if self.peer_detached:
            self.amqp_session.release_link(self)

    @property
    def is_detach_due(self) -> bool:
        """Whether `finish_detach` has a frame to send."""
        return self._detach is not None

    # ---- receiving

    def drop_partial(self) -> None:
        """Forgets the delivery whose last frame has not come."""
        partial, self.partial = self.partial, None
        if partial is not None:
            self.amqp_session.connection.partial_bytes -= partial.held_bytes

    def grant(self, credit: int, drain: bool = False) -> None:
        """Sets the link credit: the peer may send `credit` deliveries more, counted from now.

        Args:
            credit: deliveries; 0 stops the sender.
            drain: ask the sender to use up or return the credit at once.
        """
        if self.detached:
            return
        self._crossing = max(0, self.credit + self._crossing - credit)
        self.credit = credit
        self.drain = drain
        self._send_flow(False)

    def overdraw(self) -> None:
        """Lets one delivery exceed the credit (not I1): for a receiver that is known to accept it, and to grant nothing more."""
        self.credit = max(self.credit, 1)

    def use_credit(self, count: int) -> bool:
        """Counts received deliveries against the credit; returns whether they are within it."""
        self.credit -= count
        if self.credit < 0:
            self._crossing += self.credit
            self.credit = 0
        return self._crossing >= 0

    def take_back(self) -> None:
        """Asks a sender that cannot drain to stop; deliveries already on their way still arrive, up to the present credit. Once
        `peer_credit` is 0, nothing more does (`stopped`).
        """
        if self.detached:
            return
        self.peer_credit = None
        self.amqp_session.write_flow(
            Flow(handle=self.handle, delivery_count=self.delivery_count, link_credit=0, drain=False, echo=True)
        )

    def stopped(self) -> None:
        """Whether the sender has reported a credit of 0; it may have counted a delivery whose last frame is still to come."""
        self.credit = 0 if self.partial is None else 1
        self._crossing = 0

    def dispose(self, first: int, last: int, state: Any = None, settled: bool = True) -> None:
        """Disposes of incoming deliveries first to last (ids); state None is accepted."""
        session = self.amqp_session
        if session.end_sent:
            return
        if settled and (state is None or type(state) is Accepted):
            session.connection.write(accepted_frame(session.channel, True, first, last))
            return
        session.write(Disposition(True, first, last, settled, Accepted() if state is None else state, False))

    # ---- sending

    @property
    def sendable(self) -> int:
        """How many single-frame deliveries may be sent now."""
        if self.detached or self.amqp_session.ended or self._sending is not None:
            return 0
        return min(self.credit, self.amqp_session.send_window)

    @property
    def is_sending(self) -> bool:
        """Whether a delivery that is sent in parts is not whole yet."""
        return self._sending is not None

    @property
    def part_room_bytes(self) -> int:
        """How much of a delivery that is sent in parts the session's window takes now."""
        session = self.amqp_session
        if self._sending is None or self.detached or session.ended:
            return 0
        frame_bytes = session.connection.peer_max_frame_size_bytes - self._writer.overhead(len(self._sending[0]))
        return max(0, session.send_window) * frame_bytes

    def send(self, payload: bytes, tag: bytes, *, settled: bool = False, message_format: int = 0) -> int:
        """Sends one delivery; its delivery id. See `send_many`."""
        return self.send_many((payload,), (tag,), settled=settled, message_format=message_format)

    def send_many(
        self, payloads: Sequence[bytes], tags: Sequence[bytes], *, settled: bool = False, message_format: int = 0
    ) -> int:
        """Sends deliveries in order with consecutive ids; the id of the first.

        Payloads too large for a frame are split; frames beyond the session's window wait until it opens.

        Args:
            payloads: encoded messages.
            tags: delivery tags, all of the same length, at most 32 bytes.
            settled: whether they need no disposition.
            message_format: 0, or 0x80013700 for batch envelopes.

        Raises:
            ProtocolError: more deliveries than the link has credit for, or the link is detached.
        """
        count = len(payloads)
        session = self.amqp_session
        if self.detached or session.ended:
            raise ProtocolError(f"link {self.name!r} is detached")
        if count > self.credit:
            raise ProtocolError(f"{count} deliveries on link {self.name!r} with a credit of {self.credit}")
        first = session.next_delivery_id
        limit = session.connection.peer_max_frame_size_bytes
        largest = max(map(len, payloads)) + self._writer.overhead(len(tags[0]))
        if largest <= limit and count <= session.send_window:
            session.connection.write(self._writer.whole(payloads, tags, first, message_format, settled))
            session.sent_frames(count)
        else:
            for number, (payload, tag) in enumerate(zip(payloads, tags, strict=True)):
                delivery_id = (first + number) & MASK32
                frames = self._writer.split(payload, tag, delivery_id, message_format, settled, limit)
                session.write_transfers(self, frames)
        self.credit -= count
        self.delivery_count = (self.delivery_count + count) & MASK32
        session.remember_sent(self, first, count, settled)
        return first

    def begin_parts(self, tag: bytes, *, settled: bool = False, message_format: int = 0) -> int:
        """Begins a delivery whose payload follows by `send_part`; its delivery id.

        The first part has to follow before anything else is sent in the session: ids begin in their order.

        Raises:
            ProtocolError: the link has no credit, sends a delivery in parts already, or is detached.
        """
        session = self.amqp_session
        if self.sendable < 1:
            raise ProtocolError(f"link {self.name!r} cannot begin a delivery now")
        delivery_id = session.next_delivery_id
        self._sending = (tag, delivery_id, message_format, settled)
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) & MASK32
        session.remember_sent(self, delivery_id, 1, settled)
        return delivery_id

    def send_part(self, payload: bytes, *, more: bool) -> None:
        """Sends the next part of the delivery begun; at most `part_room_bytes`.

        Args:
            payload: not empty.
            more: whether further parts follow.
        """
        if self._sending is None:
            raise ProtocolError(f"link {self.name!r} has begun no delivery")
        session = self.amqp_session
        limit = session.connection.peer_max_frame_size_bytes
        tag, delivery_id, message_format, settled = self._sending
        if not more:
            self._sending = None
        session.write_transfers(
            self, self._writer.split(payload, tag, delivery_id, message_format, settled, limit, more=more)
        )
        if self._is_flow_due and not more:
            self._is_flow_due = False
            self._send_flow(False)

    def settle_sent(self, first: int, last: int, state: Any = None) -> None:
        """Settles deliveries that we sent, echoing the receiver's outcome (accepted where `state` is None)."""
        session = self.amqp_session
        if session.end_sent:
            return
        session.forget_sent(first, last)
        if state is None or type(state) is Accepted:
            session.connection.write(accepted_frame(session.channel, False, first, last))
        else:
            session.write(Disposition(False, first, last, True, state, False))

    def update_sent(self, first: int, last: int, state: Any) -> None:
        """Sends a state of deliveries that we sent, without settling them: the peer may still change it."""
        if not self.amqp_session.end_sent:
            self.amqp_session.write(Disposition(False, first, last, False, state, False))

    def drained(self) -> None:
        """Answers a drain: the credit that is left is used up."""
        if self.detached:
            return
        self.delivery_count = (self.delivery_count + self.credit) & MASK32
        self.credit = 0
        self._send_flow(False)
        self.drain = False

    # ---- both

    def _send_flow(self, echo: bool, available: int | None = None) -> None:
        if self._sending is not None:
            self._is_flow_due = True
            return
        is_receiver = self.role is Role.RECEIVER
        flow = Flow(
            handle=self.handle,
            delivery_count=self.delivery_count,
            link_credit=self.credit,
            available=available if is_receiver else 0,
            drain=self.drain,
            echo=echo,
        )
        if is_receiver:
            self.amqp_session.write_flow(flow)
        else:
            self.amqp_session.write_flow_behind(self, flow)

    def on_flow(self, flow: Flow) -> None:
        """Takes over the peer's flow; called by the session."""
        if self.role is Role.SENDER:
            base = flow.delivery_count if flow.delivery_count is not None else 0
            if flow.link_credit is not None:
                self.credit = left_of(int(flow.link_credit), int(base), self.delivery_count)
            self.drain = flow.drain
            self._answer(flow)
            return
        self.peer_credit = None if flow.link_credit is None else int(flow.link_credit)
        if flow.delivery_count is not None:
            advanced = (flow.delivery_count - self.delivery_count) & MASK32
            if advanced < 0x80000000:
                # Some senders count a delivery when they begin it; here it counts when it is whole.
                advanced -= 1 if advanced and self.partial is not None else 0
                self.delivery_count = (self.delivery_count + advanced) & MASK32
                self._crossing = max(0, min(self._crossing, self._crossing + self.credit - advanced))
                self.credit = max(0, self.credit - advanced)
        self._answer(flow)

    def _answer(self, flow: Flow) -> None:
        if flow.echo and not flow.drain and not self.detached:
            self._send_flow(False)

    def __repr__(self) -> str:
        address = self.source if self.role is Role.SENDER else self.target
        text = address.address if isinstance(address, Source | Target) else address
        return f"<Link {self.name!r} {self.role.name.lower()} {text!r} credit={self.credit}>"
