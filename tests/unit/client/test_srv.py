"""Endpoints by SRV records."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.resolver
import dns.rrset
import pytest

from isthmus.client.endpoint import Endpoint, EndpointError, EndpointUnavailableError
from isthmus.client.failure import classify
from isthmus.client.srv import Record, choose, with_host

NAME = "_servicebus._tcp.orders.example.org"
STRING = "Endpoint=sb://old.example.net/;SharedAccessKeyName=send;SharedAccessKey=c2VjcmV0"


class NameServer:
    """Answers questions over UDP.

    Attributes:
        records: texts of SRV records by name; a name that is not there does not exist.
        is_silent: whether it leaves questions unanswered.
    """

    def __init__(self) -> None:
        self.records: dict[str, list[str]] = {}
        self.is_silent = False
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            data, client = self._socket.recvfrom(4096)
            if not data:
                return
            if self.is_silent:
                continue
            question = dns.message.from_wire(data)
            answer = dns.message.make_response(question)
            name = question.question[0].name
            found = self.records.get(name.to_text(omit_final_dot=True))
            if found is None:
                answer.set_rcode(dns.rcode.NXDOMAIN)
            elif found:
                answer.answer.append(dns.rrset.from_text(name, 0, "IN", "SRV", *found))
            answer.flags |= dns.flags.RA
            self._socket.sendto(answer.to_wire(), client)

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ending:
            ending.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    made = NameServer()
    resolver = dns.resolver.Resolver(configure=False)
    resolver.nameservers = ["127.0.0.1"]
    resolver.port = made.port
    monkeypatch.setattr(dns.resolver, "default_resolver", resolver)
    monkeypatch.setattr("isthmus.client.srv._LOOKUP_SECONDS", 0.3)
    monkeypatch.setenv("ORDERS", STRING)
    yield made
    made.close()


def test_i1_the_lowest_priority_counts_and_the_weight_is_the_share() -> None:
    records = [Record(10, 1, 1, "a"), Record(10, 3, 2, "b"), Record(20, 100, 3, "c"), Record(10, 0, 4, "d")]
    assert [choose(records, lambda total, at=at: at * total).host for at in (0.1, 0.3, 0.9, 0.0)] == [  # type: ignore[misc]
        "a",
        "b",
        "b",
        "d",
    ]
    assert {choose(records[:2]).host for _ in range(200)} == {"a", "b"}
    assert choose([Record(1, 0, 1, "a")]).host == "a"


def test_a_connection_string_keeps_all_but_the_host() -> None:
    assert with_host(STRING, Record(0, 0, 5671, "new.example.net")) == STRING.replace("old.", "new.")
    local = "Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=Yg==;UseDevelopmentEmulator=true"
    assert with_host(local, Record(0, 0, 5672, "other")) == local.replace("localhost", "other:5672/")


def test_the_records_are_read_again_for_each_client(server: NameServer) -> None:
    endpoint = Endpoint.of(f"srv:{NAME}#env:ORDERS", retry_total=0)
    server.records[NAME] = ["10 0 5671 first.example.net.", "20 0 5671 second.example.net."]
    assert endpoint.host == "first.example.net"
    server.records[NAME] = ["20 0 5671 second.example.net."]
    assert endpoint.client().fully_qualified_namespace == "second.example.net"
    assert "c2VjcmV0" not in repr(endpoint)
    server.is_silent = True
    assert endpoint.host == "second.example.net", "while no server answers, the last answer counts"


def test_a_host_with_a_credential(server: NameServer) -> None:
    class Credential:
        def get_token(self, *_: Any, **__: Any) -> Any:
            raise AssertionError

    server.records[NAME] = ["0 0 5671 first.example.net."]
    assert Endpoint.of((f"srv:{NAME}", Credential())).client().fully_qualified_namespace == "first.example.net"


def test_i2_silence_is_a_region_away_and_no_records_a_mistake(server: NameServer) -> None:
    endpoint = Endpoint.of(f"srv:{NAME}#env:ORDERS")
    with pytest.raises(EndpointError, match=r"has no SRV records.*check the name"):
        endpoint.resolve()
    server.records[NAME] = ["0 0 0 ."]
    with pytest.raises(EndpointError, match="no such service"):
        endpoint.resolve()
    server.is_silent = True
    with pytest.raises(EndpointUnavailableError) as silent:
        endpoint.resolve()
    assert classify(silent.value) == classify(EndpointUnavailableError("https://example.org", "away"))


@pytest.mark.parametrize("given", ["srv:", f"srv:{NAME}", "srv:#env:ORDERS", f"srv:{NAME}#{STRING}"])
def test_what_leads_nowhere_is_refused_and_shows_no_key(given: str) -> None:
    with pytest.raises(EndpointError, match="srv:_servicebus") as refused:
        Endpoint.of(given)
    assert STRING not in str(refused.value)
