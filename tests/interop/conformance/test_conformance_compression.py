"""The conformance scenarios of kills and losses where the target is sent deflated envelopes (ADR 30).

One delivery holds several messages then, whose outcome is one, and which the namespace opens before it stores them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.conformance.conformance_suite import CASE, Suite, cases, make_suite, servicebus_end
from harness.conformance.servicebus_end import ServiceBusEnd
from isthmus.bridge.route_spec import RouteSpec
from isthmus.connectors.servicebus.port import target as servicebus_target
from isthmus.message.compression import compress
from isthmus.testing.bridge.system_pair import SystemEnd, SystemPair

# So few that a scenario has deliveries enough for its faults.
ENVELOPE_MESSAGES = 2
BODY = b'{"number": 17, "carrier": "UA", "origin": "EWR", "dest": "IAH", "delays": [3, 0, 12]}' * 4
WORDS = ("killed", "lost")
_deflated: list[int] = []


class DeflatedEnd(ServiceBusEnd):
    """A namespace to which routes send deflated envelopes."""

    def make(self, entity: str, side: str, settings: Mapping[str, Any]) -> dict[str, str]:
        """Makes a queue."""
        return super().make(entity, side, settings) | ({"compression": "deflate"} if side == "target" else {})


class DeflatedPair(SystemPair):
    """Routes that send small envelopes of messages which become smaller."""

    def route(self, name: str, **settings: Any) -> RouteSpec:
        return super().route(name, **{"envelope_messages": ENVELOPE_MESSAGES, **settings})

    def publish(self, route: RouteSpec, start: int, stop: int, body: bytes = b"") -> list[str]:
        return super().publish(route, start, stop, body or BODY)


@contextmanager
def deflated_end(folder: Path) -> Iterator[SystemEnd]:
    """Counts what is deflated."""

    def counted(data: bytes) -> bytes | None:
        found = compress(data)
        _deflated.append(len(found or b""))
        return found

    with pytest.MonkeyPatch.context() as patch, closing(DeflatedEnd(folder)) as end:
        patch.setattr(servicebus_target, "compress", counted)
        yield end


suite = make_suite({"servicebus": servicebus_end, "deflated": deflated_end}, DeflatedPair)


@pytest.mark.parametrize(
    CASE, [each for each in cases([("servicebus", "deflated")]) if set(WORDS) & set(str(each.values[2]).split("_"))]
)
def test_scenario(suite: Suite, source: str, target: str, name: str) -> None:
    suite.result((source, target, name))
    assert any(_deflated), "nothing was deflated"
