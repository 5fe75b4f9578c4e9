"""Apache Qpid Proton, unmodified: a client that knows AMQP 1.0 and nothing of Service Bus.

python-qpid-proton comes as source and is built with a C compiler: these tests run where it is installed
(``pip install python-qpid-proton``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from harness.client.fault_client import connected, look
from isthmus.amqp import section
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Sender

proton = pytest.importorskip("proton", reason="python-qpid-proton is missing: pip install python-qpid-proton")
handlers = pytest.importorskip("proton.handlers")
reactor = pytest.importorskip("proton.reactor")

ENTITIES = """
queues:
  work: {lock_duration: 5m}
  next: {}
  sessions: {requires_session: true, lock_duration: 5m}
"""
SECONDS = 20


@pytest.fixture(scope="module")
def served() -> Iterator[NamespaceProcess]:
    with namespace(config=ENTITIES) as running:
        yield running


class Work(handlers.MessagingHandler, handlers.TransactionHandler):  # type: ignore[misc, name-defined]
    """Sends and settles in one transaction, discharges it, and receives again what a roll-back left.

    Args:
        ns: the namespace.
        path: of the queue.
        count: messages to receive and accept.
        fails: whether the transaction is rolled back; the messages are then received again and accepted without one.
        early: whether deliveries are settled before the discharge.
        session_id: of the session, if the queue has sessions.
        sends: bodies to send.
        onward: the queue that they go to, via this one.
    """

    def __init__(
        self,
        ns: NamespaceProcess,
        path: str,
        *,
        count: int = 2,
        fails: bool = False,
        early: bool = False,
        session_id: str | None = None,
        sends: tuple[str, ...] = (),
        onward: str | None = None,
    ) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self.path, self.count, self.fails, self.early = path, count, fails, early
        self.session_id, self.sends, self.onward = session_id, sends, onward
        self.reported: list[str] = []
        self.settled = 0
        self.first: list[str] = []
        self.again: list[tuple[str, int]] = []
        key = ConnectionString.parse(ns.connection_string)
        assert key.key is not None
        self.url = f"amqp://{key.key_name}:{quote(key.key.reveal(), safe='')}@127.0.0.1:{ns.ports['amqp']}"
        reactor.Container(self).run()

    def on_start(self, event: Any) -> None:
        container = event.container
        self.connection = container.connect(self.url, allowed_mechs="PLAIN", reconnect=False)
        options = [reactor.AtLeastOnce()]
        if self.session_id is not None:
            options.append(reactor.Filter({proton.symbol("com.microsoft:session-filter"): self.session_id}))
        self.receiver = container.create_receiver(self.connection, self.path, options=options)
        via = {proton.symbol("com.microsoft:transfer-destination-address"): self.onward} if self.onward else None
        self.sender = container.create_sender(self.connection, self.path, options=[LinkProperties(via)])
        container.declare_transaction(self.connection, handler=self, settle_before_discharge=self.early)
        self.timer = container.schedule(SECONDS, self)

    def on_transaction_declared(self, event: Any) -> None:
        self.transaction = event.transaction
        for body in self.sends:
            message = proton.Message(body=body.encode(), id=body, group_id=self.session_id)
            self.transaction.send(self.sender, message)
        self.receiver.flow(self.count)

    def on_message(self, event: Any) -> None:
        if self.reported:
            self.again.append((event.message.id, event.message.delivery_count))
            event.delivery.update(proton.Delivery.ACCEPTED)
            return
        self.first.append(event.message.id)
        self.transaction.accept(event.delivery)
        if len(self.first) == self.count:
            self.transaction.abort() if self.fails else self.transaction.commit()

    def on_settled(self, event: Any) -> None:
        if event.delivery.link.is_receiver:
            event.delivery.settle()
            self.settled += 1
            if self.again and self.settled == self.count:
                self.end()

    def on_transaction_committed(self, event: Any) -> None:
        self.reported.append("committed")
        self.end()

    def on_transaction_aborted(self, event: Any) -> None:
        self.reported.append("aborted")
        self.receiver.flow(self.count)

    def on_transaction_commit_failed(self, event: Any) -> None:
        self.reported.append(f"failed: {event.delivery.remote.condition}")
        self.end()

    def on_timer_task(self, event: Any) -> None:
        self.reported.append("too late")
        self.end()

    def end(self) -> None:
        self.timer.cancel()
        self.connection.close()


class LinkProperties(reactor.LinkOption):  # type: ignore[misc, name-defined]
    """Properties of the attach."""

    def __init__(self, properties: dict[Any, Any] | None) -> None:
        self.properties = properties

    def apply(self, link: Any) -> None:
        if self.properties:
            link.properties = self.properties


def put(ns: NamespaceProcess, path: str, *names: str, session_id: str | None = None) -> None:
    with connected(ns, path) as client:
        group = {} if session_id is None else {"group_id": session_id}
        messages = [section.encode_message(name.encode(), properties={"message_id": name, **group}) for name in names]
        Sender(client, path).wait_ready().send_all(messages)


def contents(ns: NamespaceProcess, path: str) -> list[bytes]:
    with connected(ns, path) as client:
        return [seen.body for seen in look(client, path)]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("path", "session_id"), [("work", None), ("sessions", "s")])
def test_a_commit(served: NamespaceProcess, path: str, session_id: str | None, early: bool) -> None:
    put(served, path, "a", "b", session_id=session_id)
    work = Work(served, path, early=early, session_id=session_id, sends=("c",))
    assert (work.first, work.reported) == (["a", "b"], ["committed"])
    assert contents(served, path) == [b"c"]
    Work(served, path, count=1, session_id=session_id)
    assert contents(served, path) == []


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("path", "session_id"), [("work", None), ("sessions", "s")])
def test_what_was_settled_in_a_transaction_is_to_be_had_at_once_after_its_roll_back(
    served: NamespaceProcess, path: str, session_id: str | None, early: bool
) -> None:
    """Proton releases it then, unless it has settled before: the default outcome releases it in that case."""
    put(served, path, "a", "b", session_id=session_id)
    work = Work(served, path, fails=True, early=early, session_id=session_id, sends=("c",))
    assert (work.first, work.reported) == (["a", "b"], ["aborted"])
    assert work.again == [("a", 0), ("b", 0)]
    assert contents(served, path) == []


def test_sending_via_an_entity(served: NamespaceProcess) -> None:
    put(served, "work", "in")
    work = Work(served, "work", count=1, sends=("out",), onward="next")
    assert work.reported == ["committed"]
    assert (contents(served, "work"), contents(served, "next")) == ([], [b"out"])
