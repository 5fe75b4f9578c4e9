"""isthmus.testing.port: free ports, divided among test runs."""

from __future__ import annotations

import socket

import pytest

from isthmus.testing.port import VARIABLE, free_port, free_ports, take_share


def test_shares_are_apart_and_may_be_divided_again() -> None:
    seen: set[int] = set()
    for number in range(3):
        environment = {VARIABLE: "10000-10299"}
        take_share(number, 3, environment)
        first, last = map(int, environment[VARIABLE].split("-"))
        assert last - first == 99
        assert not seen & set(range(first, last + 1))
        seen |= set(range(first, last + 1))
        take_share(1, 2, environment)
        assert environment[VARIABLE] == f"{first + 50}-{last}"
    assert seen == set(range(10000, 10300))


def test_ports_are_of_the_share_and_free(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv(VARIABLE, f"{port}-{port}")
    assert free_port() == port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        monkeypatch.setenv(VARIABLE, f"{port}-{port + 40}")
        assert port not in free_ports(5)


def test_a_share_is_below_the_ports_of_outgoing_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    environment: dict[str, str] = {}
    take_share(5, 6, environment)
    assert 10_000 <= int(environment[VARIABLE].split("-")[0]) < int(environment[VARIABLE].split("-")[1]) < 32_768
