import select
import socket
import ssl
import threading
import time
from types import SimpleNamespace

import pytest

from isthmus.amqp import Connection, SaslInit, Transfers, performative, section
from isthmus.amqp.performative import Accepted, Disposition, Error, Modified, Received, Rejected, Released
from isthmus.amqp.types import Symbol
from isthmus.errors import (
    ConnectionLostError,
    EntityNotFoundError,
    IsthmusError,
    OperationTimeoutError,
    OutcomeUnknownError,
    QuotaExceededError,
)
from isthmus.testing.peer import Peer
from isthmus.transport import (
    Client,
    Endpoint,
    Management,
    Receiver,
    Sender,
    SharedKeyCredential,
)
from isthmus.transport import client as client_module
from isthmus.transport.error import TransportError
from isthmus.transport.request import RequestLink
from isthmus.transport.sender import envelope, messages_of


def message(number: int) -> bytes:
    return section.encode_message(b"body", properties={"message_id": f"m{number}"})


def ids(messages: list[bytes]) -> list[str]:
    return [section.decode_properties(m, section.locate(m).properties)["message_id"] for m in messages]


def test_sends_singly_and_in_envelopes_in_order() -> None:
    with Peer("q") as peer, Client(peer.endpoint).open() as client:
        sender = Sender(client, "q").wait_ready()
        sender.send_all([message(i) for i in range(700)])
        sender.send_all([message(i) for i in range(700, 1000)], batch=50)
        assert ids(list(peer.queues["q"].messages.values())) == [f"m{i}" for i in range(1000)]
        assert sender.outstanding == 0


def test_ordinals_continue_where_tags_and_ids_of_32_bits_begin_again_i1_i2() -> None:
    with Peer("q") as peer, Client(peer.endpoint).open() as client:
        sender = Sender(client, "q").wait_ready()
        sender.sent = sender.settled = 2**32 - 2
        sender._first_id = 2  # as if the session had sent so many
        first = sender.send([message(i) for i in range(4)])
        client.wait_until(lambda: not sender.outstanding, 5, "outcomes")
        assert first == 2**32 - 2
        assert [number for each in sender.outcomes for number in range(each.first, each.last + 1)] == [
            2**32 - 2, 2**32 - 1, 2**32, 2**32 + 1,
        ]  # fmt: skip
        assert ids(list(peer.queues["q"].messages.values())) == [f"m{i}" for i in range(4)]


def test_receives_under_credit_completes_and_releases() -> None:
    with Peer("q") as peer, Client(peer.endpoint).open() as client:
        for number in range(10):
            peer.queues["q"].put(message(number))
        receiver = Receiver(client, "q").wait_attached()
        receiver.grant(6)
        client.wait_until(lambda: receiver.received == 6, 5, "messages")
        runs = receiver.take()
        first = runs[0].first_id
        assert sum(len(run.tags) for run in runs) == 6
        receiver.dispose(first, first + 3)
        receiver.dispose(first + 4, first + 5, Released())
        client.flush()
        peer.wait_for(lambda: len(peer.queues["q"].fates) == 6)
        assert sorted(peer.queues["q"].fates.items())[3:5] == [(4, "completed"), (5, "released")]
        receiver.grant(100)
        receiver.drain()
        client.wait_until(lambda: receiver.drained, 5, "drain")
        assert receiver.received == 12
        assert receiver.credit == 0


def test_management_peeks_renews_and_settles_by_token() -> None:
    with Peer("q") as peer, Client(peer.endpoint).open() as client:
        for number in range(3):
            peer.queues["q"].put(message(number))
        management = Management(client, "q")
        assert ids(management.peek(2, 10)) == ["m1", "m2"]
        assert management.peek(9, 10) == []
        receiver = Receiver(client, "q").wait_attached()
        receiver.grant(3)
        client.wait_until(lambda: receiver.received == 3, 5, "messages")
        tokens = [tag for run in receiver.take() for tag in run.tags]
        assert min(management.renew(tokens)) > time.time() * 1000
        management.finish(management.start_disposition("suspended", tokens[:1], reason="why"))
        management.finish(management.start_disposition("completed", tokens[1:]))
        assert peer.queues["q"].fates == {1: "dead-lettered: why", 2: "completed", 3: "completed"}


def test_a_refused_link_and_a_refused_message_raise_their_errors() -> None:
    with Peer("q") as peer, Client(peer.endpoint).open() as client:
        with pytest.raises(EntityNotFoundError, match="nowhere"):
            Sender(client, "nowhere").wait_ready()
        with pytest.raises(EntityNotFoundError, match="nowhere"):
            Receiver(client, "nowhere").wait_attached()
        peer.queues["q"].refuse = "amqp:resource-limit-exceeded"
        with pytest.raises(QuotaExceededError):
            Sender(client, "q").wait_ready().send_all([message(1)])


def test_a_lost_connection_leaves_the_outcome_unknown_and_names_the_open_ordinals() -> None:
    with Peer("q") as peer, Client(peer.endpoint).open() as client:
        peer.queues["q"].hold = True
        sender = Sender(client, "q").wait_ready()
        sender.send([message(i) for i in range(5)])
        client.flush()
        peer.wait_for(lambda: len(peer.queues["q"].messages) == 5)
        peer.drop_connections()
        with pytest.raises(OutcomeUnknownError, match="6 deliveries"):
            sender.send_all([message(5)])
        assert (sender.sent, sender.settled) == (6, 0)
        assert isinstance(client.error, ConnectionLostError)


def test_a_peer_may_hold_messages_only_for_a_connection_whose_end_it_has_not_noticed() -> None:
    with Peer("q") as peer, Client(peer.endpoint).open() as noticed, Client(peer.endpoint).open() as silent:
        assert noticed.held_seconds == silent.held_seconds == 0.0
        silent._lost(ConnectionLostError("nothing came"))
        assert silent.held_seconds == 2 * (silent.connection.peer_idle_seconds or client_module.UNHEARD_SECONDS)
        noticed.close()
        assert noticed.error is not None
        assert noticed.held_seconds == 0.0


def test_a_connection_that_the_peer_refuses_after_its_open_raises_why() -> None:
    """OASIS AMQP 1.0, 2.4.1: the peer has to open before it can close, so that an open does not mean agreement yet."""
    refusal = Error(Symbol("amqp:invalid-field"), info={Symbol("invalid-field"): Symbol("container-id")})
    seen: list[bytes] = []

    def refuse(door: socket.socket) -> None:
        sock, _ = door.accept()
        properties = {Symbol("amqp:connection-establishment-failed"): True}
        served = Connection(server=True, container_id="peer", sasl=("ANONYMOUS",), properties=properties)
        while not served.opened and (data := sock.recv(4096)):
            seen.append(data)
            if any(isinstance(each, SaslInit) for each in served.receive(data, time.monotonic())):
                served.sasl_outcome(True)
            sock.sendall(served.take())
        served.close(refusal)
        sock.sendall(served.take())
        sock.close()

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=refuse, args=(door,))
        thread.start()
        client = Client(Endpoint("127.0.0.1", door.getsockname()[1], tls=False), sole=True)
        with pytest.raises(ConnectionLostError, match="a connection of this container"):
            client.open(5)
        thread.join()
    assert b"sole-connection-for-container" in b"".join(seen)
    assert client.fileno() == -1


def test_a_peer_that_accepts_and_says_nothing_is_left_without_a_socket_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Client(Endpoint("127.0.0.1", silent.getsockname()[1], tls=False))
        with pytest.raises(OperationTimeoutError, match="no answer to open"):
            client.open(0.2)
        assert client.fileno() == -1


def test_a_run_is_disposed_of_across_the_end_of_the_ids() -> None:
    with Peer("q") as peer, Client(peer.endpoint).open() as client:
        receiver = Receiver(client, "q").wait_attached()
        client.connection.take()
        receiver.dispose(2**32 - 2, 2**32 + 1, Released())
        frame = client.connection.take()
        assert performative.decode(frame[8:])[0] == Disposition(True, 2**32 - 2, 1, True, Released(), False)


def test_a_reply_that_cannot_be_read_ends_its_links_and_no_others_i1() -> None:
    with Peer("q") as peer, Client(peer.endpoint).open() as client:
        sender = Sender(client, "q").wait_ready()
        management = Management(client, "q")
        reply = management.start_peek(1, 1)
        links = management._links
        garbled = Transfers(links._receiver, 0, [b"1"], [b"\0Ss\xff"], 0, True, None)
        client._dispatch([garbled])
        assert reply.error is not None
        assert reply.error.code == "amqp-decode"
        sender.send_all([message(1)])
        assert client.error is None


def test_outcomes_cover_each_ordinal_once_whatever_the_ranges_i2() -> None:
    with Peer("q") as peer, Client(peer.endpoint).open() as client:
        peer.queues["q"].hold = True
        sender = Sender(client, "q").wait_ready()
        sender.send([message(i) for i in range(10)])
        for first, last in ((3, 4), (0, 1), (4, 6), (0, 9)):
            sender.on_disposed(first, last, Accepted())
        covered = [ordinal for o in sender.outcomes for ordinal in range(o.first, o.last + 1)]
        assert sorted(covered) == list(range(10))
        assert (sender.settled, sender.outstanding) == (10, 0)


@pytest.mark.parametrize("state", [Received(), None])
def test_a_state_that_is_no_outcome_settles_nothing(state: Received | None) -> None:
    """OASIS AMQP 1.0 3.4.1: received reports how far the peer is; the outcome follows."""
    with Peer("q") as peer, Client(peer.endpoint).open() as client:
        peer.queues["q"].hold = True
        sender = Sender(client, "q").wait_ready()
        sender.send([message(0)])
        client.flush()
        peer.wait_for(lambda: peer.queues["q"].messages)
        peer.answer("q", state, settled=False)
        with pytest.raises(OperationTimeoutError):
            client.wait_until(lambda: bool(sender.outcomes), 0.1, "an outcome")
        assert sender.outstanding == 1
        peer.queues["q"].hold = False
        client.wait_until(lambda: bool(sender.outcomes), 5, "an outcome")
        assert [outcome.error for outcome in sender.outcomes] == [None]


@pytest.mark.parametrize("state", [Received(), None])
def test_what_is_settled_without_an_outcome_is_not_accepted(state: Received | None) -> None:
    """OASIS AMQP 1.0 3.5.3: the default outcome holds for it, and a sender of ours declares none."""
    with Peer("q") as peer, Client(peer.endpoint).open() as client:
        peer.queues["q"].hold = True
        sender = Sender(client, "q").wait_ready()
        sender.send([message(0)])
        client.flush()
        peer.wait_for(lambda: peer.queues["q"].messages)
        peer.answer("q", state)
        client.wait_until(lambda: bool(sender.outcomes), 5, "an outcome")
        assert isinstance(sender.outcomes[0].error, OutcomeUnknownError)


@pytest.mark.parametrize("state", [Rejected(), Released(), Modified()])
def test_a_refusal_without_a_condition_is_no_acceptance(state: object) -> None:
    with Peer("q") as peer, Client(peer.endpoint).open() as client:
        peer.queues["q"].refuse_state = state
        sender = Sender(client, "q").wait_ready()
        with pytest.raises(TransportError):
            sender.send_all([message(0)])


@pytest.mark.parametrize("state", [Released(), Modified()])
def test_a_request_that_was_not_processed_fails_at_once(state: object) -> None:
    with Peer("q") as peer, Client(peer.endpoint).open() as client:
        links = RequestLink(client, "q/$management", "answers")
        reply = links.request({"operation": "nothing"}, None)
        client.wait_until(lambda: bool(links._sent), 5, "the request leaves")
        links.on_disposed(0, 0, state)
        assert isinstance(reply.error, TransportError)


def test_an_envelope_gives_its_messages_back() -> None:
    messages = [message(i) for i in range(5)]
    assert messages_of(envelope(messages)) == messages


def test_service_never_raises_for_a_peer_that_vanishes_i1() -> None:
    with Peer("q") as peer:
        client = Client(peer.endpoint).open()
        receiver = Receiver(client, "q").wait_attached()
        peer.drop_connections()
        limit = time.monotonic() + 5
        while client.error is None and time.monotonic() < limit:
            client.wait(0.1)
        assert isinstance(receiver.error, IsthmusError)
        client.service()
        client.close()


def test_a_read_that_has_to_write_first_waits_for_room_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS answers a key update before it continues to read."""

    class Full:
        def recv(self, count: int) -> bytes:
            raise ssl.SSLWantWriteError

    client = Client(Endpoint("h", 1))
    monkeypatch.setattr(client, "_socket", Full())
    client.service()
    assert client.interest() & select.POLLOUT
    monkeypatch.setattr(client, "_socket", SimpleNamespace(recv=lambda count: b""))
    client.service()
    assert not client.interest() & select.POLLOUT


def test_a_shared_key_credential_reaches_the_peer_as_a_signature() -> None:
    with Peer("q") as peer:
        endpoint = Endpoint("127.0.0.1", peer.port, tls=False, credential=SharedKeyCredential("root", "key"))
        with Client(endpoint).open() as client:
            client.authorize("q")
        assert any(str(body).startswith("SharedAccessSignature sr=") for _, _, body in peer.requests)
