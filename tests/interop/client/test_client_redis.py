"""The list of seen messages in a real redis-server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.client.client_receiver import InThread, left, make_message, send
from harness.server.redis_server import redis_server
from isthmus.client import ReplicatedReceiver
from isthmus.client.seen import Bounds, RedisSeen, SeenStore, SeenStoreError, Verdict, open_seen
from isthmus.testing.namespace import namespace
from isthmus.testing.seen_conformance import MakeSeen, SeenConformance

Server = tuple[str, "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


class TestRedisSeen(SeenConformance):
    @pytest.fixture
    def make(self, server: Server, request: pytest.FixtureRequest) -> Iterator[MakeSeen]:
        made: list[RedisSeen] = []

        def make(bounds: Bounds) -> SeenStore:
            made.append(RedisSeen(server[0], request.node.name, bounds))
            return made[-1]

        yield make
        for each in made:
            each.close()


def test_two_lists_of_one_server_are_two(server: Server) -> None:
    one, two = open_seen(server[0], "queue one"), open_seen(server[0], "queue two")
    one.handle([(b"a" * 16,)], "one")
    assert one.claim([(b"a" * 16,)], "one") == [Verdict.HANDLED]
    assert two.claim([(b"a" * 16,)], "one") == [Verdict.NEW]
    one.close()
    two.close()


def test_a_server_that_was_stopped_is_an_error_without_its_password(tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, process):
        seen = RedisSeen(url, "queue")
        seen.claim([(b"a" * 16,)], "one")
        process.kill()
        process.wait()
        with pytest.raises(SeenStoreError, match=r"redis://127\.0\.0\.1:\d+/0 failed: ConnectionError") as raised:
            seen.handle([(b"a" * 16,)], "one")
        assert "secret" not in str(raised.value)
        seen.close()


def test_receivers_with_one_list_in_redis_handle_each_message_once(server: Server, tmp_path: Path) -> None:
    names = {f"m{number}" for number in range(40)}
    found: list[str] = []
    with (
        namespace(tmp_path / "a", config="queues: {orders: {}}") as a,
        namespace(tmp_path / "b", config="queues: {orders: {}}") as b,
    ):
        for ns in (a, b):
            send(ns, "orders", [make_message(name) for name in names])

        def read() -> None:
            with ReplicatedReceiver(
                a.connection_string, b.connection_string, "orders", seen=server[0], max_wait_time=2
            ) as receiver:
                for message in receiver:
                    found.append(str(message))
                    receiver.complete_message(message)

        with InThread(read):
            read()
        assert sorted(found) == sorted(names)
        assert [left(ns, "orders") for ns in (a, b)] == [[], []]
