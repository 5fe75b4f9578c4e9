"""The connector's requests and events, with a service that returns configured answers."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.bridge.refusal import RefusalKind
from isthmus.connectors.eventgrid.mapping import event_of, to_messages
from isthmus.connectors.eventgrid.option import PullOptions, TargetOptions, read_source, read_target
from isthmus.connectors.eventgrid.source import WAIT_SECONDS, EventGridPuller
from isthmus.connectors.eventgrid.target import EventGridRequester
from isthmus.connectors.http.client import Answer
from isthmus.connectors.pull.lock_account import Locks
from isthmus.connectors.pull.puller import PullError
from isthmus.connectors.request.requester import BusyError, RequestError
from isthmus.connectors.wrap.cloud_event_message import to_json
from isthmus.errors import InvalidArgumentError

NOW = 1_700_000_000.0
OPTIONS = {"endpoint": "http://127.0.0.1:1", "entity": "flights"}


class Service:
    """Answers by status; None: no answer comes."""

    identity = "grid:443"
    secret = ""

    def __init__(self, *statuses: int | None, events: list[dict[str, Any]] | None = None) -> None:
        self.statuses = list(statuses)
        self.events = events or []
        self.published: list[list[str]] = []

    def publish(self, topic: str, content_type: str, events: list[bytes]) -> Answer:
        self.published.append([json.loads(each)["id"] for each in events])
        return self._answer(b"{}")

    def ask(self, topic: str, subscription: str, operation: str, body: Any = None, query: str = "") -> Answer:
        value = [
            {"event": event, "brokerProperties": {"lockToken": f"t{at}", "deliveryCount": 1}}
            for at, event in enumerate(self.events)
        ]
        return self._answer(json.dumps({"value": value}).encode())

    def _answer(self, body: bytes) -> Answer:
        status = self.statuses.pop(0) if self.statuses else 200
        if status is None:
            raise OSError("no answer")
        return Answer(status, "", {}, body)


def puller(*events: dict[str, Any]) -> EventGridPuller:
    options = read_source({**OPTIONS, "subscription": "sub"})
    assert isinstance(options, PullOptions)
    made = EventGridPuller(options, lambda: NOW)
    made._receiving = Service(events=list(events))  # type: ignore[assignment]
    return made


def requester(service: Service, now: float = 0.0) -> EventGridRequester:
    options = read_target(OPTIONS)
    assert isinstance(options, TargetOptions)
    clock = iter([0.0, *[now] * 100])
    made = EventGridRequester(options, lambda: next(clock))
    made._service = service  # type: ignore[assignment]
    return made


def event(event_id: str, **more: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": event_id, "source": "/x", "type": "t", **more}


def message(message_id: str) -> bytes:
    return section.encode_message(b"x", properties={"message_id": message_id})


def test_two_events_of_one_id_are_two_messages() -> None:
    """Acknowledged as one, the second would be lost."""
    first, second = event("1", data="a"), event("1", data="b")
    found = puller(first, second).receive(10)
    assert found[0].lease.name != found[1].lease.name
    assert puller(first).receive(10)[0].lease.name == found[0].lease.name
    locks = Locks(0)
    assert locks.arrive(found, 0.0) == 2
    assert [one.lease.receipt for one in locks.take(10)] == ["t0", "t1"]


def test_i3_an_event_that_cannot_be_read_delays_no_other() -> None:
    found = puller(event("\ud800"), event("2"), {"id": 5}).receive(10)
    assert [bool(each.unreadable) for each in found] == [True, False, True]
    assert all(section.locate(each.message).body[1] for each in found)


def test_i4_a_message_lives_as_long_as_it_was_given() -> None:
    """Its event contains the time at which it was made, which may be long before it was published."""
    made = section.encode_message(b"x", properties={"message_id": "1", "creation_time": round(NOW * 1000) - 3_600_000})
    header = section.encode_header(section.Header(ttl_ms=60_000))
    (found,) = puller(json.loads(event_of(header + made, "cloudevents", "ewr/flights", None))).receive(1)  # type: ignore[arg-type]
    parts = section.locate(found.message)
    enqueued_ms = section.decode_map(found.message, parts.message_annotations)["x-opt-enqueued-time"]
    ttl_ms = section.decode_header(found.message, parts.header).ttl_ms
    assert ttl_ms is not None
    assert enqueued_ms + ttl_ms == round(NOW * 1000) + 60_000


def test_i2_of_a_batch_that_is_refused_each_is_sent_alone() -> None:
    service = Service(400, 200, 400, 200)
    refusals = requester(service).send([message("a"), message("b"), message("c")])
    assert [each and each.kind for each in refusals] == [None, RefusalKind.MESSAGE, None]
    assert service.published == [["a", "b", "c"], ["a"], ["b"], ["c"]]


@pytest.mark.parametrize(("status", "error"), [(429, BusyError), (None, RequestError)])
def test_i3_what_was_taken_is_not_sent_again(status: int | None, error: type[BusyError | RequestError]) -> None:
    service = Service(400, 200, status)
    with pytest.raises(error) as raised:
        requester(service).send([message("a"), message("b"), message("c")])
    assert raised.value.answered == {0: None}


def test_a_slow_service_is_no_service_that_does_not_answer() -> None:
    """All events of a refused batch are sent alone; their answers come before a caller times out."""
    service = Service(400, 200, 200)
    with pytest.raises(BusyError) as raised:
        requester(service, 31.0).send([message("a"), message("b"), message("c")])
    assert raised.value.answered == {}
    assert raised.value.refusal.kind is RefusalKind.BLOCKED


def test_a_number_of_an_event_keeps_its_digits() -> None:
    event = b'{"id":"1","eventType":"t","subject":"s","data":{"n":1e400,"m":0.1000000000000000055}}'
    (made,) = to_messages({"content-type": "application/json"}, b"[" + event + b"]")
    assert event in made
    cloud = b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"n":12345678901234567890.5}}'
    (made,) = to_messages({"content-type": "application/json"}, cloud)
    assert cloud in made


def test_a_body_that_only_python_takes_for_json_is_no_data_of_an_event() -> None:
    message = section.encode_message(b'{"n":NaN}', properties={"content_type": "application/json"})
    assert b"NaN" not in to_json(message, "s")


def test_an_answer_that_is_cut_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise events that are acknowledged would be taken for lost."""
    made = puller()
    assert made._receiving is not None
    monkeypatch.setattr(made._receiving, "ask", lambda *_: Answer(200, "", {}, b"", is_whole=False))
    with pytest.raises(PullError, match="ended before its end"):
        made.receive(1)


def test_a_key_that_no_header_can_hold_is_reported_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRID_KEY", "hunter2\nmore")
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = {**OPTIONS, "endpoint": f"http://127.0.0.1:{server.getsockname()[1]}", "key": "env:GRID_KEY"}
        made = EventGridRequester(read_target(settings))
        made.open()
        with pytest.raises(InvalidArgumentError, match="GRID_KEY") as raised:
            made.send([message("a")])
        made.close()
    assert "hunter2" not in str(raised.value)


def test_a_receive_may_take_as_long_as_the_service_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a quiet subscription is lost again and again, with what it gave to requests that had ended."""
    monkeypatch.setenv("GRID_KEY", "key")
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = {**OPTIONS, "endpoint": f"http://127.0.0.1:{server.getsockname()[1]}", "key": "env:GRID_KEY"}
        options = read_source({**settings, "subscription": "sub", "timeout_seconds": "1"})
        assert isinstance(options, PullOptions)
        made = EventGridPuller(options)
        made.open()
        assert made._receiving is not None
        assert (made._receiving._http._connection().sock.gettimeout() or 0) > WAIT_SECONDS
        made.close()
