"""Non-blocking requests by lock token."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from isthmus.connectors.servicebus.port.token_request import ANSWER_SECONDS, RETRY_SECONDS, UNDER_WAY, TokenRequests
from isthmus.errors import (
    ConnectionLostError,
    EntityNotFoundError,
    IsthmusError,
    LockLostError,
    OperationTimeoutError,
    ServerBusyError,
)
from isthmus.transport import Reply


class Node:
    """A node that has lost some locks; answers when the test asks for it."""

    def __init__(self, lost: Sequence[bytes] = (), error: IsthmusError | None = None) -> None:
        self.lost = set(lost)
        self.error = error
        self.settled: list[tuple[str, bytes]] = []
        self.asked: list[tuple[Reply, str, list[bytes]]] = []

    def start_disposition(self, status: str, tokens: Sequence[bytes], **reported: Any) -> Reply:
        return self._ask(status, tokens)

    def start_renew(self, tokens: Sequence[bytes]) -> Reply:
        return self._ask("renewed", tokens)

    def _ask(self, what: str, tokens: Sequence[bytes]) -> Reply:
        reply = Reply("q")
        self.asked.append((reply, what, list(tokens)))
        return reply

    def answer(self) -> None:
        asked, self.asked = self.asked, []
        for reply, what, tokens in asked:
            if self.error is not None:
                reply.fail(self.error)
            elif self.lost & set(tokens):
                reply.fail(LockLostError("gone"))
            else:
                self.settled += [(what, token) for token in tokens]
                reply.resolve({"statusCode": 200}, None)


def tokens(count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


def run(requests: TokenRequests, node: Node, now: float = 0.0) -> None:
    for _ in range(100):
        requests.advance(now, lambda: node)  # type: ignore[arg-type,return-value]
        if requests.is_idle:
            return
        node.answer()
    raise AssertionError("it does not end")


def requests_of(called: Callable[[], None] = lambda: None) -> TokenRequests:
    return TokenRequests("q", called)


def test_a_lost_lock_costs_no_other_its_settlement_i2() -> None:
    node, requests = Node(lost=[b"0007", b"0555"]), requests_of()
    requests.settle(tokens(1000), None)
    run(requests, node)
    assert sorted(token for _, token in node.settled) == [t for t in tokens(1000) if t not in node.lost]


def test_few_requests_at_a_time_and_small_ones_together() -> None:
    node, requests = Node(), requests_of()
    for token in tokens(10):
        requests.settle([token], None)
    requests.advance(0.0, lambda: node)  # type: ignore[arg-type,return-value]
    assert [len(asked) for _, _, asked in node.asked] == [10]
    requests.settle(tokens(4000), None)
    requests.advance(0.0, lambda: node)  # type: ignore[arg-type,return-value]
    assert len(node.asked) == UNDER_WAY


def test_a_settlement_outlives_its_links_and_a_renewal_does_not_i1_i3() -> None:
    calls: list[int] = []
    node, requests = Node(error=ConnectionLostError("gone")), requests_of(lambda: calls.append(1))
    requests.settle(tokens(3), None)
    requests.renew(tokens(2))
    assert requests.is_renewing
    requests.advance(0.0, lambda: node)  # type: ignore[arg-type,return-value]
    requests.link_lost()
    node.answer()
    assert calls
    assert not requests.is_renewing
    again = Node()
    run(requests, again)
    assert again.settled == [("completed", token) for token in tokens(3)]


def test_a_busy_source_is_asked_again_and_one_that_refuses_ends_it() -> None:
    node, requests = Node(error=ServerBusyError("busy")), requests_of()
    requests.settle(tokens(3), None)
    requests.advance(1.0, lambda: node)  # type: ignore[arg-type,return-value]
    node.answer()
    requests.advance(1.0, lambda: node)  # type: ignore[arg-type,return-value]
    assert not node.asked
    assert requests.deadline() == 1.0 + RETRY_SECONDS
    node.error = EntityNotFoundError("q")
    requests.advance(1.0 + RETRY_SECONDS, lambda: node)  # type: ignore[arg-type,return-value]
    node.answer()
    with pytest.raises(EntityNotFoundError):
        requests.advance(2.0, lambda: node)  # type: ignore[arg-type,return-value]


def test_no_answer_is_a_fault() -> None:
    node, requests = Node(), requests_of()
    requests.settle(tokens(3), None)
    requests.advance(1.0, lambda: node)  # type: ignore[arg-type,return-value]
    assert requests.deadline() == 1.0 + ANSWER_SECONDS
    with pytest.raises(OperationTimeoutError):
        requests.advance(1.0 + ANSWER_SECONDS, lambda: node)  # type: ignore[arg-type,return-value]
