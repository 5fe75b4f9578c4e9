"""One AMQP session: windows, handles, and which link a delivery id belongs to (spec 2.5).

What it is not: Service Bus's message sessions. A little over 400 lines: what comes, what goes and what is settled all read
and move the same windows and ids.

Invariants:
    I1. Transfer frames never exceed the peer's incoming window; what does not fit waits here, in order.
    I2. Our own incoming window never closes: it is announced again before half of it is used up.
    I3. A disposition is reported only for deliveries that were sent and not settled yet, split by link; memory grows
        with the number of runs of unsettled deliveries, not with the number of deliveries.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from isthmus.amqp.delivery_run import DeliveryRuns
from isthmus.amqp.event import (
    CreditChanged,
    Disposed,
    Event,
    LinkAttached,
    LinkAttaching,
    LinkDetached,
    SentSettled,
    SessionEnded,
    TransferParts,
    Transfers,
)
from isthmus.amqp.frame import MASK32, frame
from isthmus.amqp.link import Link, Role, left_of
from isthmus.amqp.partial_delivery import PartialDelivery
from isthmus.amqp.performative import Attach, Begin, Composite, Detach, End, Error, Flow, Transfer
from isthmus.amqp.types import Symbol
from isthmus.errors import ProtocolError

if TYPE_CHECKING:
    from isthmus.amqp.connection import Connection

__all__ = ["AmqpSession", "AmqpSessionError"]


class AmqpSessionError(ProtocolError):
    """The peer violated the protocol within a session: the session ends, the connection stays open."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description, condition=condition)
        self.condition = condition


class AmqpSession:
    """One session of a connection.

    Attributes:
        channel: the channel that we write on.
        links: links by the peer's handle.
        next_delivery_id: the id that the next delivery sent gets.
        ended: whether one of both sides has ended it, or this side is about to (`begin_end`).
        end_sent: whether our End frame was sent.
        context: free for the owner.
    """

    def __init__(self, connection: Connection, channel: int, incoming_window: int, handle_max: int) -> None:
        self.connection = connection
        self.channel = channel
        self.links: dict[int, Link] = {}
        self.next_delivery_id = 0
        self.ended = False
        self.end_sent = False
        self.peer_ended = False
        self._end: End | None = None  # decided, not sent yet
        self.begun = False
        self.context: Any = None
        self.send_window = 0
        self._handle_max = handle_max
        self._by_name: dict[tuple[str, Role], Link] = {}
        self._handles: set[int] = set()
        self._incoming_window = incoming_window
        self._next_incoming_id = 0
        self._next_outgoing_id = 1
        self._unannounced = 0
        self._waiting: deque[tuple[Link, bytes | Flow]] = deque()  # a flow is queued after the transfers that it counts
        self._sent = DeliveryRuns()

    # ---- for owners

    def attach_sender(
        self, name: str, target: Any, *, source: Any = None, snd_settle_mode: int = 0, **attach: Any
    ) -> Link:
        """Attaches a link on which we send; `attach` takes further fields of `Attach`."""
        return self._attach(name, Role.SENDER, source, target, snd_settle_mode=snd_settle_mode, **attach)

    def attach_receiver(
        self,
        name: str,
        source: Any,
        *,
        target: Any = None,
        snd_settle_mode: int = 0,
        rcv_settle_mode: int = 0,
        **attach: Any,
    ) -> Link:
        """Attaches a link on which we receive; `attach` takes further fields of `Attach`."""
        return self._attach(
            name,
            Role.RECEIVER,
            source,
            target,
            snd_settle_mode=snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode,
            **attach,
        )

    def _attach(self, name: str, role: Role, source: Any, target: Any, **attach: Any) -> Link:
        link = self._new_link(name, role)
        link.source, link.target, link.attached = source, target, True
        link.snd_settle_mode = attach.pop("snd_settle_mode", 2)
        link.rcv_settle_mode = attach.pop("rcv_settle_mode", 0)
        if role is Role.RECEIVER:
            link.max_message_size_bytes = int(attach.get("max_message_size") or 0)
        self.write(
            Attach(
                name,
                link.handle,
                role.value,
                link.snd_settle_mode,
                link.rcv_settle_mode,
                source,
                target,
                initial_delivery_count=0 if role is Role.SENDER else None,
                **attach,
            )
        )
        return link

    def _new_link(self, name: str, role: Role) -> Link:
        if (name, role) in self._by_name:
            raise ProtocolError(f"link {name!r} is attached already")
        handle = next(h for h in range(len(self._handles) + 1) if h not in self._handles)
        link = Link(self, name, role, handle)
        self._handles.add(handle)
        self._by_name[name, role] = link
        return link

    def end(self, error: Error | None = None) -> None:
        """Ends the session; its links go with it."""
        self.begin_end(error)
        self.finish_end()

    def begin_end(self, error: Error | None = None) -> None:
        """Ends the session, except for its End frame: deliveries can be disposed of until `finish_end`."""
        if not self.ended:
            self.ended = True
            self._end = End(error)

    def finish_end(self) -> None:
        """Sends the End frame of `begin_end`, or the answer to the peer's; does nothing if there is none to send."""
        end, self._end = self._end, None
        if end is None:
            return
        self.write(end)
        self.end_sent = True
        if self.peer_ended:
            self.connection.release_channel(self)

    # ---- writing, for links

    def write(self, body: Composite) -> None:
        """Queues one frame on this session's channel."""
        self.connection.write(frame(self.channel, body))

    def write_flow(self, flow: Flow) -> None:
        """Queues a flow with this session's windows filled in."""
        flow.next_incoming_id = self._next_incoming_id
        flow.incoming_window = self._incoming_window
        flow.next_outgoing_id = self._next_outgoing_id
        flow.outgoing_window = MASK32 >> 1
        self._unannounced = 0
        self.write(flow)

    def write_flow_behind(self, link: Link, flow: Flow) -> None:
        """Writes a sender's flow, once nothing of what its link has sent waits for the window."""
        if self.is_waiting(link):
            self._waiting.append((link, flow))
        else:
            self.write_flow(flow)

    def is_waiting(self, link: Link) -> bool:
        """Whether something that a link has sent waits for the window."""
        return any(waits is link for waits, _ in self._waiting)

    def sent_frames(self, count: int) -> None:
        """Notes that `count` transfer frames were written."""
        self._next_outgoing_id = (self._next_outgoing_id + count) & MASK32
        self.send_window -= count

    def write_transfers(self, link: Link, frames: list[bytes]) -> None:
        """Writes a link's transfer frames as far as the window allows; the rest waits."""
        self._waiting.extend((link, one) for one in frames)
        self._flush_waiting()

    def _flush_waiting(self) -> None:
        waiting = self._waiting
        while waiting:
            _, first = waiting[0]
            if isinstance(first, Flow):
                waiting.popleft()
                self.write_flow(first)
                continue
            frames: list[bytes] = []
            while waiting and len(frames) < self.send_window and isinstance(one := waiting[0][1], bytes):
                frames.append(one)
                waiting.popleft()
            if not frames:
                return
            for one in frames:
                self.connection.write(one)
            self.sent_frames(len(frames))

    def remember_sent(self, link: Link, first: int, count: int, settled: bool) -> None:
        """Notes which ids `link` used."""
        self.next_delivery_id = (first + count) & MASK32
        if not settled:
            self._sent.add(first, count, link)

    def forget_sent(self, first: int, last: int) -> None:
        """Notes that deliveries that we sent are settled."""
        self._sent.settle(first, last)

    def forget_link(self, link: Link) -> None:
        """Forgets a link that is about to be detached: its queued frames are dropped, and its sent deliveries are not settled here.
        A server's peer that does not know yet that the link has ended may dispose of them: that is reported until it detaches, too.
        """
        if self._waiting:
            self._waiting = deque(entry for entry in self._waiting if entry[0] is not link)
            if not self.end_sent:
                self._flush_waiting()
        if link.peer_detached or not self.connection.server:
            self._sent.forget(link)

    def release(self) -> None:
        """Drops the references to the links; see `Connection.release`."""
        self.ended = self.end_sent = True
        self.links.clear()
        self._by_name.clear()
        self._waiting.clear()
        self._sent = DeliveryRuns()

    # ---- frames from the peer

    def on_begin(self, begin: Begin) -> None:
        """Takes over the peer's windows."""
        self.begun = True
        self._next_incoming_id = int(begin.next_outgoing_id)
        self.send_window = int(begin.incoming_window)
        self._handle_max = min(self._handle_max, int(begin.handle_max))

    def begin_frame(self, remote_channel: int | None) -> Begin:
        """Our begin."""
        return Begin(remote_channel, self._next_outgoing_id, self._incoming_window, 65536, self._handle_max)

    def on_attach(self, attach: Attach, events: list[Event]) -> None:
        """A link of the peer's, or its answer to ours."""
        if attach.handle > self._handle_max:
            raise AmqpSessionError(
                "amqp:not-allowed", f"handle {attach.handle} is over the limit of {self._handle_max}"
            )
        known = self.links.get(attach.handle)
        if known is not None and (not known.detached or known.is_detach_due):
            raise AmqpSessionError("amqp:session:handle-in-use", f"handle {attach.handle} is in use by {known.name!r}")
        if known is not None:  # detached from this side, and the peer took its handle again instead of an answer
            known.peer_detached = True
            self._sent.forget(known)
            self.release_link(known)
        role = Role(not attach.role)
        link = self._by_name.get((attach.name, role))
        if link is not None and link.peer is None:
            link.peer = attach
            link.properties = attach.properties
            if role is Role.SENDER:
                link.max_message_size_bytes = int(attach.max_message_size or 0)
            else:
                link.delivery_count = int(attach.initial_delivery_count or 0)
            self.links[attach.handle] = link
            link.source, link.target = attach.source, attach.target
            events.append(LinkAttached(link))
            return
        if link is not None:
            raise AmqpSessionError("amqp:session:handle-in-use", f"link {attach.name!r} is attached already")
        link = self._new_link(attach.name, role)
        link.peer = attach
        link.source, link.target = attach.source, attach.target
        link.properties = attach.properties
        link.desired_capabilities = list(attach.desired_capabilities or ())
        link.snd_settle_mode, link.rcv_settle_mode = int(attach.snd_settle_mode), int(attach.rcv_settle_mode)
        if role is Role.RECEIVER:
            link.delivery_count = int(attach.initial_delivery_count or 0)
        self.links[attach.handle] = link
        events.append(LinkAttaching(link))

    def on_flow(self, flow: Flow, events: list[Event]) -> None:
        """The peer's windows and, with a handle, a link's credit."""
        was_closed = self.send_window <= 0
        held_up = {link for link, _ in self._waiting}
        base = 1 if flow.next_incoming_id is None else int(flow.next_incoming_id)
        self.send_window = left_of(int(flow.incoming_window), base, self._next_outgoing_id)
        self._flush_waiting()
        if flow.handle is not None:
            link = self._attached(flow.handle)
            if not link.detached:
                link.on_flow(flow)
                events.append(CreditChanged(link, flow.echo))
        elif flow.echo:
            self.write_flow(Flow())
        held_up.difference_update(link for link, _ in self._waiting)
        is_opened = was_closed and self.send_window > 0
        if is_opened or held_up:
            events.extend(
                CreditChanged(link, False)
                for link in self.links.values()
                if link.role is Role.SENDER
                and (link in held_up or (is_opened and (link.credit > 0 or link.is_sending)))
                and (flow.handle is None or self.links.get(flow.handle) is not link)
                and not link.detached
            )

    def on_scanned(self, link: Link, count: int, first: int, tags: list[bytes], payloads: list[bytes], settled: bool,
                   message_format: int, events: list[Event]) -> None:  # fmt: skip
        """Takes deliveries that the fast path has parsed."""
        self._received_frames(count)
        if not self._take(link, count, events):
            return
        events.append(Transfers(link, first, tags, payloads, message_format, settled, None))

    def on_transfer(self, transfer: Transfer, payload: bytes, events: list[Event]) -> Link | None:
        """One transfer frame; returns the link if a whole delivery came in one frame, so that its shape can be learnt."""
        self._received_frames(1)
        link = self._attached(transfer.handle)
        if link.detached:
            self._lose(link, link.lost_state if transfer.state is None else transfer.state, events)
            return None
        if link.role is Role.SENDER:
            raise AmqpSessionError("amqp:not-allowed", f"transfer on link {link.name!r}, whose sender is this side")
        partial = link.partial
        if partial is None:
            if transfer.delivery_id is None:
                raise AmqpSessionError("amqp:invalid-field", "first transfer of a delivery without a delivery-id")
            partial = PartialDelivery(
                int(transfer.delivery_id),
                transfer.delivery_tag or b"",
                int(transfer.message_format or 0),
                bool(transfer.settled),
                transfer.state,
            )
            single = not transfer.more
        else:
            if transfer.delivery_id is not None and transfer.delivery_id != partial.delivery_id:
                raise AmqpSessionError("amqp:invalid-field", "a delivery began before the one before it had ended")
            partial.settled = partial.settled or bool(transfer.settled)
            partial.state = transfer.state if transfer.state is not None else partial.state
            single = False
        if transfer.aborted:
            link.drop_partial()
            if partial.is_reported:
                events.append(TransferParts(link, partial.delivery_id, [], partial.settled, None, True, True))
            # It was begun, and so its sender has counted it.
            if self._take(link, 1, events):
                events.append(CreditChanged(link, False))
            return None
        partial.add(payload)
        if 0 < link.max_message_size_bytes < partial.size_bytes:
            link.drop_partial()
            error = Error(
                Symbol("amqp:link:message-size-exceeded"),
                f"The message is over the link's limit of {link.max_message_size_bytes} bytes.",
            )
            self._lose(link, partial.state, events)
            self._detach(link, error, events)
            return None
        if transfer.more:
            link.partial = partial
            partial.held_bytes += len(payload)
            self.connection.partial_bytes += len(payload)
            if partial.is_reported or 0 < link.parts_above_bytes < partial.size_bytes:
                self._report_parts(link, partial, False, events)
            return None
        link.drop_partial()
        if partial.is_reported:
            if self._take(link, 1, events, partial.state):
                self._report_parts(link, partial, True, events)
            return None
        if self._take(link, 1, events, partial.state):
            whole = payload if single else b"".join(partial.parts)
            self._report(link, partial, whole, events)
            return link if single and partial.state is None else None
        return None

    def _report(self, link: Link, partial: PartialDelivery, payload: bytes, events: list[Event]) -> None:
        last = events[-1] if events else None
        if (
            isinstance(last, Transfers)
            and last.link is link
            and last.message_format == partial.message_format
            and last.settled == partial.settled
            and last.state is None
            and partial.state is None
            and (last.first_delivery_id + len(last.tags)) & MASK32 == partial.delivery_id
        ):
            last.tags.append(partial.tag)
            last.payloads.append(payload)
            return
        events.append(
            Transfers(
                link,
                partial.delivery_id,
                [partial.tag],
                [payload],
                partial.message_format,
                partial.settled,
                partial.state,
            )
        )

    def _report_parts(self, link: Link, partial: PartialDelivery, is_last: bool, events: list[Event]) -> None:
        """Hands over what has come of a large message; an envelope of many is reported whole."""
        if partial.message_format != 0:
            return
        last = events[-1] if events else None
        if isinstance(last, TransferParts) and last.link is link and not last.is_last:
            last.parts += partial.parts
            last.settled, last.state, last.is_last = partial.settled, partial.state, is_last
        else:
            parts = list(partial.parts)
            events.append(
                TransferParts(link, partial.delivery_id, parts, partial.settled, partial.state, is_last, False)
            )
        partial.is_reported = True
        partial.parts.clear()
        self.connection.partial_bytes -= partial.held_bytes
        partial.held_bytes = 0

    def _received_frames(self, count: int) -> None:
        self._next_incoming_id = (self._next_incoming_id + count) & MASK32
        self._unannounced += count
        if self._unannounced * 2 >= self._incoming_window:
            self.write_flow(Flow())

    def _take(self, link: Link, count: int, events: list[Event], state: Any = None) -> bool:
        """Counts deliveries against the link's credit; detaches a link that exceeds it."""
        link.delivery_count = (link.delivery_count + count) & MASK32
        if link.use_credit(count):
            return True
        error = Error(Symbol("amqp:link:transfer-limit-exceeded"), "More deliveries came than the link had credit for.")
        self._lose(link, state, events)
        self._detach(link, error, events)
        return False

    @staticmethod
    def _lose(link: Link, state: Any, events: list[Event]) -> None:
        """Reports the state of a delivery that is dropped."""
        if state is not None:
            events.append(Transfers(link, 0, [], [], 0, False, state))

    def _detach(self, link: Link, error: Error, events: list[Event]) -> None:
        """Detaches a link whose peer broke its limits."""
        link.begin_detach(error)
        if self.connection.answers_at_once:
            link.finish_detach()
        events.append(LinkDetached(link, error, True))

    def _attached(self, handle: int) -> Link:
        link = self.links.get(handle)
        if link is None:
            raise AmqpSessionError("amqp:session:unattached-handle", f"handle {handle} is not attached")
        return link

    def on_disposition(self, role: bool, first: int, last: int, state: Any, settled: bool, events: list[Event]) -> None:
        """What became of deliveries, in either direction."""
        if not role:
            events.append(SentSettled(self, first, last, state, settled))
            return
        for low, high, link in self._sent.covered(first, last):
            events.append(Disposed(link, low, high, state, settled))
        if settled:
            self._sent.settle(first, last)

    def on_detach(self, detach: Detach, events: list[Event]) -> None:
        """The peer detached, or answered ours."""
        link = self._attached(detach.handle)
        del self.links[detach.handle]
        link.peer_detached = True
        self._sent.forget(link)
        if link.detached and not link.is_detach_due:
            self.release_link(link)
        if not link.detached:
            if not link.attached:  # the peer detached before we answered its attach
                link.answer_null()
            link.begin_detach(closed=detach.closed)
        if self.connection.answers_at_once:
            link.finish_detach()
        elif link.is_detach_due:
            self._by_name.pop((link.name, link.role), None)  # the peer may use the name again
        events.append(LinkDetached(link, detach.error, detach.closed))

    def release_link(self, link: Link) -> None:
        """A link's handle and name are free again: both sides have detached it."""
        self._handles.discard(link.handle)
        if self._by_name.get((link.name, link.role)) is link:
            del self._by_name[link.name, link.role]

    def on_end(self, end: End, events: list[Event]) -> None:
        """The peer ended the session, or answered ours."""
        self.peer_ended = True
        self.begin_end()
        if self.connection.answers_at_once:
            self.finish_end()
        for link in self.links.values():
            link.detached = True
            link.drop_partial()
        self.links.clear()
        events.append(SessionEnded(self, end.error))
