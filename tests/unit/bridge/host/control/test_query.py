from isthmus.bridge.host.control.effect import Add, Assign, Death, Grant
from isthmus.bridge.host.control.message import Lease, Report
from isthmus.bridge.host.control.query import Queries
from isthmus.bridge.report import RouteReport
from isthmus.bridge.route_spec import End, RouteSpec

END = End("memory", "here")
A = RouteSpec(name="a", source=END, target=END, claim="claim-a")
B = RouteSpec(name="b", source=END, target=END)


def test_i2_what_was_decided_first_is_carried_out_first_and_answers_do_not_wait() -> None:
    woken: list[None] = []
    queries = Queries(lambda: woken.append(None))
    control = queries.control("shared")
    assert queries.control("shared") is control
    control.assign([A])
    assert queries.on_message("shared", 1, Lease("shared", 1, 0, 7), is_local=True) == []
    assert not woken
    control.add(B)
    assert woken
    assert queries.on_message("shared", 1, Report(asked=4), is_local=True) == [Grant(1, 4, ("claim-a",))]
    queries.on_closed("shared", 1, is_cut_off=False)
    assert [queries.take() for _ in range(4)] == [
        ("shared", Assign(1, (A,), 0.0)),
        ("shared", Add(1, B)),
        ("shared", Death({"a": RouteReport(), "b": RouteReport()})),
        None,
    ]


def test_queries_are_kept_apart() -> None:
    queries = Queries(lambda: None)
    queries.control("one").stop("no more")
    assert not queries.control("two").stopping
    assert (queries.is_known("two"), queries.is_known("three")) == (True, False)
