import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.bridge.frame import Kind, pack_json
from isthmus.bridge.host.channel import ChannelError
from isthmus.bridge.host.control.message import Died, Ended, Lease, Look, Report, message_of
from isthmus.bridge.report import RouteReport, RouteState


def test_each_message_is_understood() -> None:
    reported = {"query": "shared", "lease": 3, "slot": 1, "process": 77}
    assert message_of(Kind.LEASE, pack_json(reported)) == Lease("shared", 3, 1, 77)
    report = RouteReport(state=RouteState.RUNNING, settled=4, set_aside=(9,), retry_in_seconds=0.5)
    payload = pack_json({"routes": {"a/b": report.to_json()}, "asked": 5, "processes": [7, 8]})
    assert message_of(Kind.REPORT, payload) == Report({"a/b": report}, 5, (7, 8))
    assert message_of(Kind.DIED, pack_json({"routes": ["a/b"]})) == Died(("a/b",))
    assert message_of(Kind.DIED, b"{}") == Died(None)
    assert message_of(Kind.ENDED, b"{}") == Ended("")
    assert message_of(Kind.ENDED, pack_json({"error": "no"})) == Ended("no")
    assert message_of(Kind.LOOK, pack_json({"query": "shared"})) == Look("shared")


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Kind.REPORT, b"{"),
        (Kind.REPORT, b"\xff"),
        (Kind.REPORT, b"[1]"),
        (Kind.REPORT, b"[" * 100_000),
        (Kind.REPORT, b'{"routes": [1]}'),
        (Kind.REPORT, b'{"routes": {"a": 1}}'),
        (Kind.REPORT, b'{"routes": {"a": {"settled": "many"}}}'),
        (Kind.REPORT, b'{"routes": {"a": {"settled": -1}}}'),
        (Kind.REPORT, b'{"routes": {"a": {"settled": true}}}'),
        (Kind.REPORT, b'{"routes": {"a": {"is_exhausted": 1}}}'),
        (Kind.REPORT, b'{"routes": {"a": {"set_aside": 5}}}'),
        (Kind.REPORT, b'{"routes": {"a": {"set_aside": ["x"]}}}'),
        (Kind.REPORT, b'{"routes": {"a": {"retry_in_seconds": NaN}}}'),
        (Kind.REPORT, b'{"routes": {"a": {"state": "dancing"}}}'),
        (Kind.REPORT, b'{"routes": {"a": {"state": []}}}'),
        (Kind.REPORT, b'{"routes": {"a": {"unheard of": 1}}}'),
        (Kind.REPORT, b'{"asked": "now"}'),
        (Kind.REPORT, b'{"processes": [1.5]}'),
        (Kind.LEASE, b'{"query": "q", "lease": 1, "slot": 0}'),
        (Kind.LEASE, b'{"query": 1, "lease": 1, "slot": 0, "process": 1}'),
        (Kind.DIED, b'{"routes": "all"}'),
        (Kind.ENDED, b'{"error": null}'),
        (Kind.LOOK, b"{}"),
        (Kind.ASSIGN, b"{}"),
    ],
)
def test_i1_what_is_no_message_is_refused(kind: Kind, payload: bytes) -> None:
    with pytest.raises(ChannelError):
        message_of(kind, payload)


_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["routes", "settled", "asked"]), inner),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([Kind.LEASE, Kind.REPORT, Kind.DIED, Kind.ENDED, Kind.LOOK]), _VALUES)
def test_i1_whatever_comes_is_a_message_or_refused(kind: Kind, reported: Any) -> None:
    try:
        message_of(kind, json.dumps(reported).encode())
    except ChannelError:
        return
    assert isinstance(reported, dict)
