"""The handling of received canaries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from isthmus.amqp import section
from isthmus.message.name import CANARY
from isthmus.supervisor.watch.canary_watch import CanaryWatch

ROUTE: Any = SimpleNamespace(
    name="flights.ewr.jfk",
    options=SimpleNamespace(canary_ms=30_000),
    source=SimpleNamespace(alias="ewr"),
    target=SimpleNamespace(alias="jfk"),
)


class Receiver:
    """Gives one run."""

    error = None

    def __init__(self, payloads: list[bytes]) -> None:
        self.disposed: list[tuple[int, int]] = []
        self._runs = [SimpleNamespace(first_id=7, tags=[b""] * len(payloads), payloads=payloads)]

    def take(self) -> list[Any]:
        return self._runs

    def dispose(self, first: int, last: int) -> None:
        self.disposed.append((first, last))


def test_what_cannot_be_read_is_completed_and_delays_no_canary() -> None:
    watch = CanaryWatch([ROUTE], lambda: None, lambda route: True, lambda: 11.0)  # type: ignore[arg-type,return-value]
    number = watch._canaries[ROUTE.name].send(10.0)
    own = {CANARY: ROUTE.name, "isthmus-canary-number": number, "isthmus-canary-run": watch._run}
    broken = section.encode_message(b"", application_properties={"a": "b"})[:-7]
    receiver: Any = Receiver([b"\x00\x53", broken, section.encode_message(b"", application_properties=own)])
    client: Any = SimpleNamespace(flush=lambda: None)
    watch._receive(client, receiver)
    assert receiver.disposed == [(7, 9)]
    assert watch.figures(ROUTE, 11.0)[1] == 1.0
