"""The connection engine: handshake, links, credit, windows, faults, heartbeats; both peers back to back."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.amqp import (
    BATCH_FORMAT,
    AmqpSession,
    Closed,
    Connection,
    CreditChanged,
    Disposed,
    Error,
    Link,
    LinkAttached,
    LinkAttaching,
    LinkDetached,
    Opened,
    Role,
    SaslRefused,
    SentSettled,
    SessionBegun,
    SessionEnded,
    TransferParts,
    Transfers,
)
from isthmus.amqp.frame import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, frame
from isthmus.amqp.performative import (
    Accepted,
    Attach,
    Begin,
    Detach,
    Flow,
    Modified,
    Open,
    Rejected,
    Source,
    Target,
    Transfer,
)
from isthmus.errors import ProtocolError
from isthmus.testing.back_to_back import BackToBack as Peers


def condition_of(event: LinkDetached | SessionEnded | Closed) -> str:
    assert event.error is not None
    return event.error.condition


def tag(number: int) -> bytes:
    return struct.pack(">I", number)


def with_sender(peers: Peers) -> tuple[AmqpSession, Link]:
    session = peers.client.begin()
    link = session.attach_sender("s", Target(address="queue"), source=Source(address="me"))
    peers.pump()
    return session, link


def test_handshake_reaches_both_sides() -> None:
    peers = Peers(idle_timeout_ms=120000).open()
    assert peers.seen(Opened)[0].container_id == "client"
    assert peers.seen(Opened)[0].hostname == "host"
    assert peers.seen(Opened, "client")[0].container_id == "server"
    assert peers.client.opened
    assert peers.server.opened


def test_plain_is_refused_with_a_wrong_key_and_taken_with_the_right_one() -> None:
    for response, ok in ((b"\0name\0wrong", False), (b"\0name\0key", True)):
        peers = Peers()
        peers.client.start("PLAIN", response)
        peers.pump()
        assert peers.client.opened is ok
        assert bool(peers.seen(SaslRefused, "client")) is not ok
        assert peers.server.closed is not ok


def test_a_mechanism_that_is_not_offered_is_said_to_be_so() -> None:
    peers = Peers()
    peers.client.start("EXTERNAL")
    peers.pump()
    assert "EXTERNAL" in peers.seen(SaslRefused, "client")[0].reason


def test_a_client_that_skips_sasl_is_turned_away() -> None:
    server = Connection(server=True, container_id="s", sasl=("ANONYMOUS",))
    events = server.receive(AMQP_HEADER, 0.0)
    assert isinstance(events[0], Closed)
    assert server.take() == SASL_HEADER


def test_headers_of_other_protocols_are_answered_with_ours() -> None:
    for header in (b"AMQP\0\0\x09\x01", b"GET / HT", b"\x16\x03\x01\x00\x00\x00\x00\x00"):
        server = Connection(server=True, container_id="s", sasl=("ANONYMOUS",))
        assert isinstance(server.receive(header, 0.0)[0], Closed)
        assert server.take() == SASL_HEADER


def test_deliveries_arrive_in_order_and_are_disposed_over_ranges() -> None:
    peers = Peers().open()
    peers.credit = 1000
    _, link = with_sender(peers)
    assert peers.seen(LinkAttached, "client")
    assert link.sendable == 1000
    payloads = [b"\0Su\xa0\x04%04d" % n for n in range(600)]
    for start in range(0, 600, 200):
        link.send_many(payloads[start : start + 200], [tag(n) for n in range(start, start + 200)])
        peers.pump()
    runs = peers.seen(Transfers)
    assert [p for run in runs for p in run.payloads] == payloads
    assert [t for run in runs for t in run.tags] == [tag(n) for n in range(600)]
    assert [run.first_delivery_id for run in runs] == [sum(len(r.tags) for r in runs[:n]) for n in range(len(runs))]
    receiver = runs[0].link
    receiver.dispose(0, 99)
    receiver.dispose(100, 100, Rejected(Error("amqp:not-allowed", "no")))
    receiver.dispose(101, 599, Modified(True, False))
    peers.pump()
    assert [(d.first, d.last, type(d.state)) for d in peers.seen(Disposed, "client")] == [
        (0, 99, Accepted),
        (100, 100, Rejected),
        (101, 599, Modified),
    ]
    receiver.dispose(0, 599)  # a second disposition of settled deliveries is ignored
    peers.at_client.clear()
    peers.pump()
    assert not peers.seen(Disposed, "client")


def test_unsettled_dispositions_are_echoed_to_the_session() -> None:
    peers = Peers().open()
    session = peers.client.begin()
    link = session.attach_receiver("r", Source(address="queue"), rcv_settle_mode=1)
    peers.pump()
    link.grant(10)
    peers.pump()
    sender = peers.seen(CreditChanged)[0].link
    assert sender.sendable == 10
    sender.send_many([b"\0Sw\x40"] * 3, [tag(n) * 4 for n in range(3)])
    peers.pump()
    assert link.credit == 7
    link.dispose(0, 2, Accepted(), settled=False)
    peers.pump()
    got = peers.seen(Disposed)[0]
    assert (got.first, got.last, got.settled, got.link) == (0, 2, False, sender)
    sender.settle_sent(0, 2, got.state)
    peers.pump()
    echo = peers.seen(SentSettled, "client")[0]
    assert (echo.first, echo.last, type(echo.state), echo.settled) == (0, 2, Accepted, True)


def test_dispositions_over_several_links_are_split_by_link() -> None:
    peers = Peers().open()
    session = peers.client.begin()
    first = session.attach_sender("a", Target(address="qa"))
    second = session.attach_sender("b", Target(address="qb"))
    peers.pump()
    first.send_many([b"\0Sw\x40"] * 2, [tag(1), tag(2)])
    second.send_many([b"\0Sw\x40"] * 2, [tag(3), tag(4)])
    first.send(b"\0Sw\x40", tag(5))
    peers.pump()
    peers.seen(Transfers)[0].link.dispose(0, 4)
    peers.pump()
    assert [(d.link.name, d.first, d.last) for d in peers.seen(Disposed, "client")] == [
        ("a", 0, 1),
        ("b", 2, 3),
        ("a", 4, 4),
    ]


@pytest.mark.parametrize("size", [100, 60_000, 70_000, 900_000])
def test_large_deliveries_are_split_and_joined(size: int) -> None:
    peers = Peers().open()
    _, link = with_sender(peers)
    payload = b"\0Su\xb0" + struct.pack(">I", size) + bytes(size)
    link.send_many([payload, b"\0Sw\x40"], [tag(1), tag(2)], message_format=BATCH_FORMAT)
    peers.pump()
    runs = peers.seen(Transfers)
    assert [p for run in runs for p in run.payloads] == [payload, b"\0Sw\x40"]
    assert {run.message_format for run in runs} == {BATCH_FORMAT}


def test_large_messages_are_reported_in_parts_and_not_buffered() -> None:
    peers = Peers().open()
    _, link = with_sender(peers)
    peers.seen(LinkAttaching)[0].link.parts_above_bytes = 100_000
    whole = [b"\0Su\xb0" + struct.pack(">I", size) + bytes(size) for size in (400_000, 90_000, 200_000)]
    link.send_many(whole, [tag(n) for n in range(3)])
    envelope = b"\0Su\xb0" + struct.pack(">I", 300_000) + bytes(300_000)
    link.send(envelope, tag(3), message_format=BATCH_FORMAT)
    peers.pump()
    found: list[tuple[int, bytes]] = []
    for event in peers.seen(TransferParts):
        if not found or found[-1][0] != event.delivery_id:
            found.append((event.delivery_id, b""))
        found[-1] = (event.delivery_id, found[-1][1] + b"".join(event.parts))
    assert found == [(0, whole[0]), (2, whole[2])]
    assert [event.delivery_id for event in peers.seen(TransferParts) if event.is_last] == [0, 2]
    assert [run.payloads for run in peers.seen(Transfers)] == [[whole[1]], [envelope]]
    assert peers.server.partial_bytes == 0
    assert peers.seen(LinkAttaching)[0].link.delivery_count == 4


def test_i4_of_link_a_delivery_in_parts_leaves_room_for_other_links() -> None:
    peers = Peers(incoming_window=8).open()
    session, link = with_sender(peers)
    other = session.attach_sender("t", Target(address="queue"))
    peers.pump()
    payload = b"\0Su\xb0" + struct.pack(">I", 900_000) + bytes(900_000)
    delivery_id = link.begin_parts(tag(1))
    at = 0
    while at < len(payload):
        room = link.part_room_bytes
        assert room > 0
        part = payload[at : at + min(room, 150_000)]
        at += len(part)
        link.send_part(part, more=at < len(payload))
        assert session.send_window >= 0
        if at < len(payload):
            assert link.is_sending
            assert link.sendable == 0
            with pytest.raises(ProtocolError):
                link.begin_parts(tag(2))
        if at == 150_000:
            other.send(b"\0Sw\x40", tag(3))
        peers.pump()
    assert not link.is_sending
    runs = peers.seen(Transfers)
    assert [run.payloads for run in runs] == [[b"\0Sw\x40"], [payload]]
    assert [run.first_delivery_id for run in runs] == [delivery_id + 1, delivery_id]


def test_a_delivery_over_the_links_limit_detaches_the_link_only() -> None:
    peers = Peers().open()
    session, link = with_sender(peers)
    link.send(b"\0Su\xb0" + struct.pack(">I", 1 << 21) + bytes(1 << 21), tag(1))
    peers.pump()
    assert condition_of(peers.seen(LinkDetached, "client")[0]) == "amqp:link:message-size-exceeded"
    other = session.attach_sender("t", Target(address="queue"))
    peers.pump()
    other.send(b"\0Sw\x40", tag(2))
    peers.pump()
    assert peers.seen(Transfers)[-1].payloads == [b"\0Sw\x40"]


def test_i1_of_link_nothing_is_sent_beyond_the_credit() -> None:
    peers = Peers().open()
    peers.credit = 2
    _, link = with_sender(peers)
    with pytest.raises(ProtocolError):
        link.send_many([b"\0Sw\x40"] * 3, [tag(n) for n in range(3)])
    link.send_many([b"\0Sw\x40"] * 2, [tag(n) for n in range(2)])
    assert link.sendable == 0


def test_i2_of_link_a_peer_that_oversteps_its_credit_is_detached() -> None:
    peers = Peers().open()
    peers.credit = 2
    _, link = with_sender(peers)
    link.credit = 5
    link.send_many([b"\0Sw\x40"] * 5, [tag(n) for n in range(5)])
    peers.pump()
    assert sum(len(run.tags) for run in peers.seen(Transfers)) <= 2
    assert condition_of(peers.seen(LinkDetached, "client")[0]) == "amqp:link:transfer-limit-exceeded"


def test_i1_of_session_frames_beyond_the_window_wait_for_it() -> None:
    peers = Peers(incoming_window=10).open()
    peers.credit = 1000
    session, link = with_sender(peers)
    payload = bytes(300_000)
    link.send(b"\0Su\xb0" + struct.pack(">I", len(payload)) + payload, tag(1))
    link.send_many([b"\0Sw\x40"] * 40, [tag(n) for n in range(40)])
    assert session.send_window <= 10
    peers.pump()
    assert sum(len(run.tags) for run in peers.seen(Transfers)) == 41


def test_drain_is_answered_and_uses_up_the_credit() -> None:
    peers = Peers().open()
    session = peers.client.begin()
    link = session.attach_receiver("r", Source(address="queue"))
    peers.pump()
    link.grant(10)
    peers.pump()
    link.grant(10, drain=True)
    peers.pump()
    sender = peers.seen(CreditChanged)[-1].link
    assert sender.drain
    assert sender.credit == 10
    sender.drained()
    peers.pump()
    assert link.credit == 0
    assert link.delivery_count == 10
    assert not sender.drain


@pytest.mark.parametrize("asked", ["drain", "echo"])
@pytest.mark.parametrize("sizes", [[300_000], [10] * 20, [10, 200_000, 10]], ids=str)
def test_i5_of_link_a_flow_leaves_behind_the_deliveries_that_it_counts(asked: str, sizes: list[int]) -> None:
    """They wait for the session's window; their receiver would count them twice, and detach a link that gives none back."""
    peers = Peers(incoming_window=4).open()
    peers.credit = 0
    session, link = with_sender(peers)
    receiver = peers.seen(LinkAttaching)[0].link
    receiver.grant(len(sizes) + (2 if asked == "drain" else 0))
    peers.pump()
    session.send_window = 2  # as where the receiver's flow has not come yet
    payloads = [b"\0Su\xb0" + struct.pack(">I", size) + bytes(size) for size in sizes]
    link.send_many(payloads, [tag(number) for number in range(len(sizes))])
    if asked == "drain":
        link.drain = True
        link.drained()
    else:
        link.on_flow(Flow(handle=link.handle, delivery_count=0, link_credit=0, echo=True))
    peers.pump()
    receiver.amqp_session.write_flow(Flow())  # the window opens
    peers.pump()
    assert [payload for run in peers.seen(Transfers) for payload in run.payloads] == payloads
    assert not peers.seen(LinkDetached)
    assert (receiver.credit, receiver.delivery_count) == (0, link.delivery_count)


def test_i5_of_link_a_flow_waits_for_the_end_of_a_delivery_in_parts() -> None:
    peers = Peers().open()
    peers.credit = 1
    _, link = with_sender(peers)
    receiver = peers.seen(LinkAttaching)[0].link
    payload = b"\0Su\xb0" + struct.pack(">I", 9) + bytes(9)
    link.begin_parts(tag(1))
    link.send_part(payload[:7], more=True)
    receiver.take_back()
    peers.pump()
    assert receiver.peer_credit is None
    link.send_part(payload[7:], more=False)
    peers.pump()
    assert [run.payloads for run in peers.seen(Transfers)] == [[payload]]
    assert not peers.seen(LinkDetached)
    assert (receiver.credit, receiver.peer_credit) == (0, 0)


@pytest.mark.parametrize("advanced", [0, 1, 3])
def test_a_flow_amid_a_delivery_may_count_it_already(advanced: int) -> None:
    """Some senders count a delivery when they begin it, others when it is whole: to both their credit is as they say."""
    peers = Peers().open()
    peers.credit = 3
    _, link = with_sender(peers)
    receiver = peers.seen(LinkAttaching)[0].link
    payload = b"\0Su\xb0" + struct.pack(">I", 9) + bytes(9)
    link.begin_parts(tag(1))
    link.send_part(payload[:7], more=True)
    link.amqp_session.write_flow(Flow(handle=link.handle, delivery_count=advanced, link_credit=3 - advanced))
    peers.pump()
    link.send_part(payload[7:], more=False)
    peers.pump()
    assert [run.payloads for run in peers.seen(Transfers)] == [[payload]]
    assert not peers.seen(LinkDetached)
    assert (receiver.credit, receiver.delivery_count) == (3 - max(advanced, 1), max(advanced, 1))


@pytest.mark.parametrize("by", ["peer", "owner"])
def test_transfers_behind_the_end_of_a_session_are_dropped_in_whatever_form(by: str) -> None:
    """I1: what the fast path takes apart is dropped as what comes frame by frame."""
    peers = Peers().open()
    session, link = with_sender(peers)
    link.send_many([b"\0Sw\x40"] * 3, [tag(number) for number in range(3)])
    peers.pump()
    assert len([payload for run in peers.seen(Transfers) for payload in run.payloads]) == 3
    peers.at_server.clear()
    if by == "peer":
        session.write(Transfer(handle=9, delivery_id=3, delivery_tag=b"x"))
    else:
        next(iter(peers.server._by_remote.values())).end()
    link.send_many([b"\0Sw\x40"] * 3, [tag(number) for number in range(3)])
    peers.pump()
    assert peers.seen(Transfers) == []


def with_receiver(peers: Peers) -> tuple[AmqpSession, Link, Link]:
    """A session, and both ends of a link on which the client receives; the server's comes last."""
    session = peers.client.begin()
    link = session.attach_receiver("r", Source(address="queue"))
    peers.pump()
    return session, link, peers.seen(LinkAttaching)[-1].link


@pytest.mark.parametrize("credit", [0, 2, 4])
def test_i2_of_link_what_crosses_a_flow_that_lowers_the_credit_is_taken(credit: int) -> None:
    peers = Peers().open()
    _, link, sender = with_receiver(peers)
    link.grant(10)
    peers.pump()
    sender.send_many([b"\0Sw\x40"] * 5, [tag(n) for n in range(5)])
    link.grant(credit)
    peers.pump()
    assert sum(len(run.tags) for run in peers.seen(Transfers, "client")) == 5
    assert link.credit == sender.credit == 0
    assert peers.seen(LinkDetached, "client") == []
    link.grant(3)
    peers.pump()
    assert link.credit == sender.credit == 3


@pytest.mark.parametrize("crossing", [0, 3])
def test_i2_of_link_no_more_is_taken_than_was_ever_granted(crossing: int) -> None:
    peers = Peers().open()
    _, link, sender = with_receiver(peers)
    link.grant(5)
    peers.pump()
    sender.send_many([b"\0Sw\x40"] * crossing, [tag(n) for n in range(crossing)]) if crossing else None
    link.grant(0)
    peers.pump()
    assert peers.seen(LinkDetached, "client") == []
    sender.credit = 10
    for number in range(crossing, 6):
        sender.send(b"\0Sw\x40", tag(number))
    peers.pump()
    assert sum(len(run.tags) for run in peers.seen(Transfers, "client")) <= 5
    assert condition_of(peers.seen(LinkDetached, "client")[0]) == "amqp:link:transfer-limit-exceeded"


def test_i2_of_link_credit_given_back_is_not_taken_again() -> None:
    peers = Peers().open()
    _, link, sender = with_receiver(peers)
    link.grant(5)
    peers.pump()
    link.grant(1, drain=True)
    peers.pump()
    sender.drained()
    peers.pump()
    assert (link.credit, sender.credit, link.delivery_count) == (0, 0, sender.delivery_count)
    link.grant(4)
    peers.pump()
    sender.send_many([b"\0Sw\x40"] * 4, [tag(n) for n in range(4)])
    peers.pump()
    assert peers.seen(LinkDetached, "client") == []
    sender.credit = 1
    sender.send(b"\0Sw\x40", tag(4))
    peers.pump()
    assert condition_of(peers.seen(LinkDetached, "client")[0]) == "amqp:link:transfer-limit-exceeded"


@pytest.mark.parametrize("credit", [1, 2**31 - 1, 2**31, 2**32 - 1])
def test_any_credit_that_a_flow_can_say_is_granted(credit: int) -> None:
    peers = Peers().open()
    _, link, sender = with_receiver(peers)
    link.grant(credit)
    peers.pump()
    assert sender.credit == credit
    sender.send(b"\0Sw\x40", tag(1))
    session = link.amqp_session
    session.write_flow(
        Flow(handle=link.handle, delivery_count=0, link_credit=credit)
    )  # written before the delivery came
    peers.pump()
    assert sender.credit == credit - 1


@pytest.mark.parametrize("window", [1, 2**31 - 1, 2**31, 2**32 - 1])
def test_any_window_that_a_flow_can_say_is_used(window: int) -> None:
    peers = Peers(incoming_window=window).open()
    session, _ = with_sender(peers)
    peers.server.take()
    peers.seen(LinkAttaching)[0].link.grant(3)
    peers.pump()
    assert session.send_window == window


def test_what_waits_for_the_window_is_not_sent_on_a_lost_link() -> None:
    """For the peer its handle is unknown by now, or that of another link: the connection or that link would end."""
    peers = Peers().open()
    session, link, sender = with_receiver(peers)
    link.grant(2)
    peers.pump()
    sender.amqp_session.send_window = 2
    sender.send(b"\0Su\xb0" + struct.pack(">I", 900_000) + bytes(900_000), tag(1))
    sender.send(b"\0Sw\x40", tag(2))
    link.detach()
    peers.server.receive(peers.client.take(), 0.0)
    before = len(peers.server.take())
    assert before > 100_000
    session.write_flow(Flow())
    peers.server.receive(peers.client.take(), 0.0)
    assert peers.server.take() == b""


def test_a_detached_link_leaves_nothing_in_its_session() -> None:
    peers = Peers().open()
    session = peers.client.begin()
    for number in range(50):
        link = session.attach_receiver(f"r{number}", Source(address="queue"))
        peers.pump()
        link.grant(10)
        peers.pump()
        sender = peers.seen(LinkAttaching)[-1].link
        sender.send(b"\0Sw\x40", tag(number))
        peers.pump()
        link.detach()
        peers.pump()
    assert sender.amqp_session._sent.covered(0, 100) == []


def test_a_handle_taken_again_instead_of_an_answer_to_a_detach_is_free() -> None:
    peers = Peers().open()
    session = peers.client.begin()
    peers.pump()
    peers.accept = False
    server = peers.seen(SessionBegun)[0].amqp_session
    for number in range(300):
        attach = Attach("same", 0, False, target=Target(address="queue"), initial_delivery_count=0)
        events = peers.server.receive(frame(session.channel, attach), 0.0)
        [attaching] = [event for event in events if isinstance(event, LinkAttaching)]
        attaching.link.refuse(Error("amqp:not-found", "no such entity"))
        assert attaching.link.handle == 0, number
    assert len(server._by_name) == len(server._handles) == 1


@pytest.mark.parametrize("frames", [1, 3])
def test_an_aborted_delivery_takes_credit(frames: int) -> None:
    """Its sender counts what it has begun: otherwise the counts of both ends would differ, and one end would wait for ever."""
    peers = Peers().open()
    session, link = with_sender(peers)
    receiver = peers.seen(LinkAttaching)[0].link
    for number in range(40):
        body = Transfer(link.handle, number, tag(number), 0, False, True).encode() + b"\0Su"
        aborted = Transfer(link.handle, number, tag(number), 0, False, False, aborted=True).encode()
        frames_of = [frame(session.channel, body)] * (frames - 1) + [frame(session.channel, aborted)]
        events = peers.server.receive(b"".join(frames_of), 0.0)
        assert [type(event) for event in events] == [CreditChanged]
    assert (receiver.delivery_count, receiver.credit) == (40, 60)
    assert peers.server.partial_bytes == 0


def test_small_pieces_of_a_delivery_take_no_more_memory_than_is_counted() -> None:
    peers = Peers().open()
    session, link = with_sender(peers)
    receiver = peers.seen(LinkAttaching)[0].link
    pieces = [struct.pack(">H", number) for number in range(5000)]
    payload = b"\0Su\xb0" + struct.pack(">I", 2 * len(pieces)) + b"".join(pieces)

    def transfer(piece: bytes, more: bool) -> bytes:
        return frame(session.channel, Transfer(link.handle, 0, tag(1), 0, False, more).encode() + piece)

    for piece in (payload[:8], *pieces):
        peers.server.receive(transfer(piece, True) + transfer(b"", True), 0.0)
    assert receiver.partial is not None
    assert len(receiver.partial.parts) < 300
    assert peers.server.partial_bytes == len(payload)
    [event] = [each for each in peers.server.receive(transfer(b"", False), 0.0) if isinstance(each, Transfers)]
    assert event.payloads == [payload]


@pytest.mark.parametrize(
    "form", ["4152055205410053244542", "41434341005324450000", "4170000000057000000005410053244542"]
)
def test_i2_dispositions_that_are_cut_off_end_the_connection_and_raise_nothing(form: str) -> None:
    whole = b"\0S\x15\xc0\x12\x06" + bytes.fromhex(form)
    for size in range(len(whole)):
        peers = Peers().open()
        with_receiver(peers)
        events = peers.server.receive(frame(0, whole[:size]), 0.0)
        assert size == 0 or [condition_of(event) for event in events if isinstance(event, Closed)] == [
            "amqp:decode-error"
        ]


def test_echo_is_answered_with_a_flow() -> None:
    peers = Peers().open()
    _, link = with_sender(peers)
    peers.at_server.clear()
    link.amqp_session.write_flow(Flow(handle=link.handle, delivery_count=link.delivery_count, link_credit=0, echo=True))
    peers.at_client.clear()
    peers.pump()
    assert peers.seen(CreditChanged, "client")


def test_refused_links_are_detached_with_the_error() -> None:
    peers = Peers().open()
    peers.accept = False
    session = peers.client.begin()
    session.attach_receiver("r", Source(address="nowhere"))
    session.attach_sender("s", Target(address="nowhere"))
    peers.pump()
    for attaching in peers.seen(LinkAttaching):
        attaching.link.refuse(Error("amqp:not-found", "no such entity"))
    peers.pump()
    attached = peers.seen(LinkAttached, "client")
    assert attached[0].link.source is None
    assert attached[1].link.target is None
    detached = peers.seen(LinkDetached, "client")
    assert [condition_of(d) for d in detached] == ["amqp:not-found"] * 2
    assert not peers.client.closed


def test_a_link_name_can_be_used_again_after_detach() -> None:
    peers = Peers().open()
    session, link = with_sender(peers)
    link.detach()
    peers.pump()
    again = session.attach_sender("s", Target(address="queue"))
    peers.pump()
    again.send(b"\0Sw\x40", tag(1))
    peers.pump()
    assert len(peers.seen(Transfers)) == 1


def test_session_faults_end_the_session_and_leave_the_connection() -> None:
    peers = Peers().open()
    session, _ = with_sender(peers)
    session.write(Transfer(handle=9, delivery_id=0, delivery_tag=b"x"))
    peers.pump()
    ended = peers.seen(SessionEnded)[0]
    assert condition_of(ended) == "amqp:session:unattached-handle"
    assert condition_of(peers.seen(SessionEnded, "client")[0]) == "amqp:session:unattached-handle"
    assert not peers.server.closed
    _, link = with_sender(peers)
    assert link.sendable > 0


@pytest.mark.parametrize(
    ("raw", "condition"),
    [
        (struct.pack(">I", 1 << 30) + b"\2\0\0\0", "amqp:connection:framing-error"),
        (b"\0\0\0\4\2\0\0\0", "amqp:connection:framing-error"),
        (b"\0\0\0\x0c\7\0\0\0\0\0\0\0", "amqp:connection:framing-error"),
        (frame(0, b"\0\x53\x99\xc0\x01\x00"), "amqp:decode-error"),
        (frame(0, b"\xff\xff\xff"), "amqp:decode-error"),
        (frame(0, b"\0\x53\x12\xc0\x03\x01\x54\x01"), "amqp:decode-error"),
        (frame(7, Flow()), "amqp:not-allowed"),
        (frame(0, Open("again")), "amqp:not-allowed"),
        (frame(5000, Begin()), "amqp:not-allowed"),
    ],
)
def test_i2_connection_faults_close_with_the_right_error(raw: bytes, condition: str) -> None:
    peers = Peers().open()
    events = peers.server.receive(raw, 0.0)
    assert isinstance(events[-1], Closed)
    assert condition_of(events[-1]) == condition
    assert peers.server.closed
    assert peers.server.receive(b"more", 0.0) == []
    peers.at_client.clear()
    peers.client.receive(peers.server.take(), 0.0)
    assert peers.client.closed


def test_close_is_answered() -> None:
    peers = Peers().open()
    peers.client.close()
    peers.pump()
    assert peers.seen(Closed)[0].by_peer
    assert peers.seen(Closed, "client")[0].by_peer


def test_i4_heartbeats_leave_in_time_and_silence_is_noticed() -> None:
    peers = Peers(idle_timeout_ms=10_000).open()
    peers.client.tick(0.0)
    assert peers.client.take() == b""
    assert peers.client.deadline() == pytest.approx(5.0)
    peers.client.tick(5.0)
    assert peers.client.take() == EMPTY_FRAME
    assert peers.server.receive(EMPTY_FRAME, 5.0) == []
    assert peers.server.tick(24.9) == []
    closed = peers.server.tick(25.1)
    assert isinstance(closed[0], Closed)
    assert peers.server.take()


SCRIPT = st.lists(
    st.tuples(st.sampled_from(["send", "big", "dispose", "detach", "attach"]), st.integers(1, 30)),
    min_size=1,
    max_size=12,
)


def _run(script: list[tuple[str, int]], size: int) -> list[str]:
    """Plays a script with the bytes cut to pieces of `size`; what the server saw, runs joined."""
    peers = Peers(cut=lambda data: [data[i : i + size] for i in range(0, len(data), size)]).open()
    session = peers.client.begin()
    names = iter(range(1000))
    link = session.attach_sender("link-0", Target(address="queue"))
    peers.pump()
    seen: list[str] = []
    for verb, count in script:
        if verb == "send" and link.sendable >= count:
            link.send_many([b"\0Su\xa0\x01" + bytes([n]) for n in range(count)], [tag(n) for n in range(count)])
        elif verb == "big" and link.sendable:
            link.send(b"\0Su\xb0" + struct.pack(">I", count * 5000) + bytes(count * 5000), tag(count))
        elif verb == "dispose" and peers.seen(Transfers):
            run = peers.seen(Transfers)[-1]
            run.link.dispose(run.first_delivery_id, run.first_delivery_id)
        elif verb == "detach":
            link.detach()
        elif verb == "attach" and link.detached:
            link = session.attach_sender(f"link-{next(names)}-{count}", Target(address="queue"))
        peers.pump()
    for event in peers.at_server:
        if isinstance(event, Transfers):
            seen.extend(
                f"{event.link.name} {event.first_delivery_id + n} {t.hex()} {hash(p)} {event.message_format} {event.settled}"
                for n, (t, p) in enumerate(zip(event.tags, event.payloads, strict=True))
            )
        else:
            seen.append(type(event).__name__)
    return seen


@given(SCRIPT, st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_i1_the_cut_of_the_bytes_does_not_matter(script: list[tuple[str, int]], size: int) -> None:
    assert _run(script, size) == _run(script, 1 << 30)


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=6), st.integers(1, 4000))
@settings(max_examples=300, deadline=None)
def test_i2_no_input_raises(changes: list[tuple[int, int]], size: int) -> None:
    recorded = bytearray(_RECORDED)
    for at, value in changes:
        recorded[8 + at % (len(recorded) - 8)] = value
    server = Connection(server=True, container_id="s", sasl=("ANONYMOUS",))
    for start in range(0, len(recorded), size):
        for event in server.receive(bytes(recorded[start : start + size]), 0.0):
            if type(event).__name__ == "SaslInit":
                server.sasl_outcome(True)
            if isinstance(event, LinkAttaching):
                event.link.accept()
                if event.link.role is Role.RECEIVER:
                    event.link.grant(10)
    server.take()


def _record() -> bytes:
    """What a client sends from its first byte on: SASL, open, begin, attaches, transfers, a disposition, close."""
    peers = Peers()
    peers.open()
    session, link = with_sender(peers)
    link.send_many([b"\0Su\xa0\x03abc"] * 5, [tag(n) for n in range(5)])
    receiver = session.attach_receiver("r", Source(address="queue"))
    peers.pump()
    receiver.grant(5)
    peers.pump()
    peers.seen(CreditChanged)[-1].link.send(b"\0Sw\x40", bytes(16))
    peers.pump()
    receiver.dispose(0, 0)
    peers.client.close()
    peers.pump()
    return b"".join(peers.from_client)


_RECORDED = _record()


def test_frames_behind_the_end_of_their_session_are_passed_over() -> None:
    """azure-servicebus detaches its management links after it has ended their session."""
    peers = Peers().open()
    session, link = with_sender(peers)
    session.end()
    peers.client.write(frame(session.channel, Detach(link.handle, False)))
    peers.client.close()
    peers.pump()
    assert peers.seen(Closed)[0].error is None
