"""What a verification reads, and what it expects to find."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from isthmus.amqp import section, types
from isthmus.connectors.spool.folder import SpoolFolder
from isthmus.errors import InvalidArgumentError
from isthmus.message.provenance import digest
from isthmus.replication.shuffle.start import spool_folder
from isthmus.replication.verification import verify as verify_module
from isthmus.replication.verification.ground import ground_of
from isthmus.replication.verification.identity import identify
from isthmus.replication.verification.reconciliation.count import COUNTS, Verdict
from isthmus.replication.verification.reconciliation.reconcile import Comparison, Reconciliation
from isthmus.replication.verification.verify import FolderUnreadableError, flows_of, verify
from isthmus.topology import read
from isthmus.topology.linter import warnings
from isthmus.topology.route import routes

FILE = """
isthmus: 1
namespaces:
  ewr: {connection: env:EWR}
  jfk: {connection: env:JFK}
tasks:
  flights: {pattern: all-active, members: [ewr, jfk], subscriptions: [audit], %s}
"""


def asked(monkeypatch: pytest.MonkeyPatch, task: str) -> dict[str, Any]:
    """What the audit of a federation's only task is asked for."""
    seen: dict[str, Any] = {}

    def audit(name: str, routes: Any, subscriptions: Any, peek: Any, **more: Any) -> Reconciliation:
        seen.update(more, subscriptions=subscriptions)
        return Reconciliation(name, ())

    monkeypatch.setattr(verify_module, "audit", audit)
    monkeypatch.setattr(
        verify_module.NamespaceClients, "identities", lambda _, aliases: dict(zip(aliases, aliases, strict=True))
    )
    list(verify(read(FILE % task)))
    return seen


def test_a_topic_may_have_a_slash(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(monkeypatch, "topic: east/flights")["subscriptions"]
    assert str(found["ewr"]) == "ewr/east/flights/Subscriptions/audit"


def test_of_what_several_routes_show_of_a_message_the_latest_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entity that was made again gives its numbers again: what the last route of a passage diverted may be the former message."""
    chain = "chain: {pattern: fan-out, topic: f, hub: ewr, audit: 1d, members: {jfk: [lga]}, ledger: {path: %s}}"
    head = FILE.partition("tasks:")[0] + "  lga: {connection: env:LGA}\ntasks:\n  "
    federation = read(head + chain % tmp_path)
    reported = {"chain.ewr.jfk": {7: 2000, 8: 1}, "chain.jfk.lga": {7: 1000, 9: 3}}
    monkeypatch.setattr("isthmus.replication.ledger.moved.moved", lambda path, route, *_: reported[route])
    ground = ground_of(flows_of(federation, "chain"), {each.name: each for each in routes(federation)})
    (one_passage,) = [each for each in ground.passages if len(each.routes) > 1]
    assert [route.name for route in one_passage.routes] == list(reported)
    found = verify_module._delivered(one_passage, ground, one_passage.routes, "divert")
    assert found == {7: 2000, 8: 1, 9: 3}


def selected(monkeypatch: pytest.MonkeyPatch, task: str, own: dict[str, Any]) -> str:
    message = section.encode_message(
        b"x",
        annotations={
            types.Symbol("x-opt-sequence-number"): types.Long(3),
            types.Symbol("x-opt-enqueued-time"): types.Timestamp(1),
        },
        properties={"subject": "board"},
        application_properties=own,
    )
    found = asked(monkeypatch, task)["selects"](message, identify(message))
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize(
    ("task", "own", "expected"),
    [
        ("topic: f", {}, ""),
        ("topic: f, mark: replication", {"replication": 1}, "held_back"),
        ("topic: f, mark: replication", {"Replication": types.Long(1)}, "held_back"),
        ("topic: f, mark: replication", {"replication": 0}, ""),
        ("topic: f, mark: seen", {"replication": 1}, ""),
        ("topic: f, filter: \"carrier = 'UA'\"", {"carrier": "UA"}, ""),
        ("topic: f, filter: \"carrier = 'UA'\"", {"carrier": "AA"}, "filtered"),
        ("topic: f, filter: \"carrier = 'UA'\"", {}, "filtered"),
        ("topic: f, mark: replication, filter: \"carrier = 'UA'\"", {"carrier": "UA", "replication": 1}, "held_back"),
        ("topic: f, filter: \"sys.Label = 'board' AND 1 / n > 0\"", {"n": 0}, "filtered"),
        ("topic: f, filter: \"sys.Label = 'board' AND 1 / n > 0\"", {"n": 1}, ""),
        ("topic: f, mark: replication", {"replication": b"x"}, "incomparable"),
        ("topic: f, mark: replication, filter: \"carrier = 'UA'\"", {"replication": b"x"}, "incomparable"),
        ("topic: f, mark: replication", {"replication": 1, "repl-origin": "lga/f", "repl-sequence": "3"}, "stopped"),
    ],
)
def test_what_the_tasks_rule_keeps_back_is_not_expected(
    monkeypatch: pytest.MonkeyPatch, task: str, own: dict[str, Any], expected: str
) -> None:
    assert selected(monkeypatch, task, own) == expected


TURNED = """
isthmus: 1
namespaces:
  ewr: {connection: env:EWR}
  jfk: {connection: env:JFK}
tasks:
  flights: {pattern: active-passive, primary: jfk, secondary: ewr, failover_within: 1m, topic: f, subscriptions: [audit]}
"""


@pytest.mark.parametrize(
    ("origin", "body", "expected"),
    [("ewr/f", b"x", "returned"), ("lga/f", b"x", "stopped"), ("ewr/g", b"x", "stopped"), ("ewr/f", b"y", "stopped")],
)
def test_a_copy_from_before_the_members_changed_places_is_no_new_message(
    monkeypatch: pytest.MonkeyPatch, origin: str, body: bytes, expected: str
) -> None:
    alias = origin.partition("/")[0]
    monkeypatch.setattr(f"{__name__}.FILE", TURNED + "%.0s")
    found = asked(monkeypatch, "")
    carried = {
        found["mark"]: "a-1",
        "repl-origin": origin,
        "repl-namespace": alias,
        "repl-sequence": "3",
        "repl-offset": "3-0",
        "repl-enqueued-time": "2026-11-27T07:13:28.107Z",
        "repl-digest": digest(b"a-1", b"x"),
    }
    message = section.encode_message(
        body,
        annotations={types.Symbol("x-opt-sequence-number"): types.Long(3)},
        properties={"message_id": "a-1"},
        application_properties=carried,
    )
    assert found["selects"](message, identify(message)) == expected


@pytest.mark.parametrize(
    ("task", "given", "expected"),
    [
        ("topic: f, subscriptions: [audit]", "", ("f/Subscriptions/audit", False, 86_400_000)),
        ("topic: f, subscriptions: [boards], audit: 2h", "", ("f/Subscriptions/audit", False, 7_200_000)),
        ("topic: f, subscriptions: [audit], audit: off", "", ("f/Subscriptions/audit", False, 0)),
        ("topic: f, subscriptions: [boards]", "", ("f/Subscriptions/boards", True, 0)),
        ("topic: f, subscriptions: [boards]", "other", ("f/Subscriptions/other", False, 0)),
        ("queue: q", "", ("q/Subscriptions/consumers", True, 0)),
        ("queue: q", "consumers", ("q/Subscriptions/consumers", True, 0)),
        ("queue: q, audit: 1h", "", ("q/Subscriptions/audit", False, 3_600_000)),
        ("queue: q, audit: 1h", "consumers", ("q/Subscriptions/consumers", True, 0)),
    ],
)
def test_the_audit_subscription_is_read_where_there_is_one(
    task: str, given: str, expected: tuple[str, bool, int]
) -> None:
    flows = flows_of(read(FILE.replace("subscriptions: [audit], ", "") % task), "flights", given)
    assert [str(flow.origin) for flow in flows] == [
        f"{alias}/{expected[0].partition('/')[0]}" for alias in ("ewr", "jfk")
    ]
    for flow in flows:
        assert (flow.witness.entity, flow.origin_is_consumed, flow.audit_ms) == expected
        assert (flow.target.entity, flow.target_is_consumed) == expected[:2]


@pytest.mark.parametrize(
    ("task", "forwards"),
    [
        ("{pattern: split, source: ewr, queue: q, targets: [{to: jfk, queue: a}]}", "ewr/q"),
        ("{pattern: copy, source: ewr, target: jfk, topic: q, audit: 1h, mailbox: true}", "None"),
        ("{pattern: move, source: ewr, target: jfk, queue: q}", "None"),
        ("{pattern: spillover, queue: q, members: [ewr, jfk], deadline: 10m, audit: 1h}", "None"),
    ],
)
def test_a_queue_that_is_divided_forwards_to_what_the_routes_read(task: str, forwards: str) -> None:
    federation = read(FILE.partition("tasks:")[0] + f"tasks:\n  t: {task}\n")
    chosen = {route.name: route for route in routes(federation)}
    ground = ground_of(flows_of(federation, "t"), chosen)
    assert {str(each.forwards) for each in ground.passages} == {forwards}


@pytest.mark.parametrize(
    ("task", "consumed"),
    [
        ("{pattern: archive, source: ewr, topic: f, subscription: s, table: lake}", True),
        ("{pattern: move, source: ewr, topic: f, subscription: s, target: hub, target_topic: g}", True),
        ("{pattern: archive, source: ewr, topic: f, table: lake}", False),
        ("{pattern: move, source: ewr, queue: q, target: hub, target_topic: g}", False),
    ],
)
def test_what_an_applications_subscription_did_not_take_is_not_called_lost(task: str, consumed: bool) -> None:
    """Its rules are not the task's: the topic gives numbers to messages that they leave out, too."""
    head = FILE.partition("tasks:")[0] + "  hub: {kind: kafka, bootstrap: 'a:1'}\n"
    federation = read(head + f"tasks:\n  t: {task}\n")
    (one_passage,) = ground_of(flows_of(federation, "t"), {each.name: each for each in routes(federation)}).passages
    assert (one_passage.is_witnessed, one_passage.is_consumed) == (False, consumed)


@pytest.mark.parametrize(
    ("action", "may_end"),
    [("SET a = 2", {"lga"}), ("REMOVE A", {"lga"}), ("SET b = 2", set()), ("SET sys.To = 'x'", set())],
)
def test_what_an_action_may_keep_from_going_on_is_not_called_lost(action: str, may_end: set[str]) -> None:
    text = (
        FILE.partition("tasks:")[0]
        + "  lga: {connection: env:LGA}\ntasks:\n  t: {pattern: fan-out, topic: f, hub: ewr, audit: 1d, "
        f'members: {{jfk: [lga]}}, filter: "a = 1", action: "{action}"}}\n'
    )
    flows = flows_of(read(text), "t")
    assert {each.target.alias for each in flows if each.drops and each.origin.alias == "ewr"} == may_end
    reported = [each for each in warnings(text) if "are not copied further from jfk" in str(each)]
    assert len(reported) == bool(may_end)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("", {"jfk/a": "x = 1", "jfk/b": "y = 1", "jfk/c": ""}),
        (", first: true", {"jfk/a": "", "jfk/b": "", "jfk/c": ""}),
    ],
)
def test_a_message_of_a_split_is_sought_at_several_targets_where_it_may_go_to_several(
    first: str, expected: dict[str, str]
) -> None:
    targets = '[{to: jfk, queue: a, filter: "x = 1"}, {to: jfk, name: two, queue: b, filter: "y = 1"}]'
    task = f"{{pattern: split, source: ewr, queue: q, targets: {targets}, otherwise: {{to: jfk, name: no, queue: c}}{first}}}"
    federation = read(FILE.partition("tasks:")[0] + f"tasks:\n  t: {task}\n")
    chosen = {route.name: route for route in routes(federation)}
    ground = ground_of(flows_of(federation, "t"), chosen)
    assert {each.member: each.filter for each in ground.passages} == expected
    assert all(each.is_filtered for each in ground.passages)


@pytest.mark.parametrize(
    ("task", "given"),
    [
        ("{pattern: copy, source: ewr, target: jfk, topic: f, target_queue: q}", "other"),
        ("{pattern: spillover, queue: q, members: [ewr, jfk], deadline: 10m, audit: 1h}", "audit"),
    ],
)
def test_a_queue_is_no_less_consumed_where_a_subscription_is_named(task: str, given: str) -> None:
    """What its consumers have taken would be called lost."""
    federation = read(FILE.partition("tasks:")[0] + f"tasks:\n  t: {task}\n")
    for flow in flows_of(federation, "t", given):
        assert (flow.witness.entity.rpartition("/")[2], flow.origin_is_consumed) == (given, False)
        assert (flow.target.entity, flow.target_is_consumed) == ("q", True)


def test_an_audit_subscription_with_a_filter_does_not_hold_every_message() -> None:
    text = FILE.replace("subscriptions: [audit], ", "") % 'topic: f, subscriptions: {audit: {filter: "a = 1"}%s}'
    alone = read(text % "")
    with pytest.raises(InvalidArgumentError, match="no subscription that retains every message"):
        flows_of(alone, "flights")
    assert {flow.witness.entity for flow in flows_of(alone, "flights", "audit")} == {"f/Subscriptions/audit"}
    chosen = flows_of(read(text % ", boards: "), "flights")
    assert {(flow.witness.entity, flow.origin_is_consumed) for flow in chosen} == {("f/Subscriptions/boards", True)}


def test_an_audit_subscription_of_a_tree_with_a_filter_does_not_hold_every_message_either() -> None:
    """What its filter leaves out would be missed nowhere."""
    head, text = (
        FILE.partition("tasks:")[0],
        "{pattern: fan-out, topic: f, hub: ewr, members: [jfk], subscriptions: %s}",
    )
    alone = read(head + "tasks:\n  t: " + text % '{audit: {filter: "a = 1"}}')
    with pytest.raises(InvalidArgumentError, match="no subscription that retains every message"):
        flows_of(alone, "t")
    (chosen,) = flows_of(read(head + "tasks:\n  t: " + text % '{audit: {filter: "a = 1"}, boards: }'), "t")
    assert (chosen.witness.entity, chosen.target.entity) == ("f/Subscriptions/boards", "f/Subscriptions/boards")
    assert (chosen.origin_is_consumed, chosen.target_is_consumed, chosen.audit_ms) == (True, True, 0)


@pytest.mark.parametrize(
    ("ordering", "ordered", "by_session"),
    [("ordered", True, False), ("strict", True, False), ("session", True, True), ("none", False, False)],
)
def test_order_is_expected_where_the_task_promises_it(
    monkeypatch: pytest.MonkeyPatch, ordering: str, ordered: bool, by_session: bool
) -> None:
    reported = asked(monkeypatch, f"topic: f, ordering: {ordering}")
    assert (reported["ordered"], reported["by_session"]) == (ordered, by_session)


def test_a_task_of_which_nothing_is_compared_is_not_called_clean() -> None:
    text = FILE.partition("tasks:")[0] + "tasks:\n  t: {pattern: chain, members: [ewr], forward: {inbox: off}}\n"
    federation = read(text)
    (result,) = verify(federation)
    assert result.verdict is Verdict.UNCLEAR
    assert result.doubts == ("no messages that task t moves can be compared",)


def test_a_folder_that_cannot_be_read_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` of another user than the run's ended with a traceback, and with 1, which means a loss."""

    def audit(*_: Any, **more: Any) -> Reconciliation:
        raise PermissionError(errno.EACCES, "Permission denied", "/var/lib/isthmus/spools/t/in/taken")

    monkeypatch.setattr(verify_module, "audit", audit)
    monkeypatch.setattr(
        verify_module.NamespaceClients, "identities", lambda _, aliases: dict(zip(aliases, aliases, strict=True))
    )
    with pytest.raises(FolderUnreadableError, match="/spools/t/in/taken cannot be read: Permission denied"):
        list(verify(read(FILE % "topic: flights")))


@pytest.mark.parametrize(("lost", "is_made", "count"), [(1, False, 2), (0, False, 0), (1, True, 0)])
def test_a_loss_is_reported_with_the_spools_that_are_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, lost: int, is_made: bool, count: int
) -> None:
    """The run has another state folder: what waits in its spools counted as lost, and nothing was said of them."""

    def audit(name: str, *_: Any, **more: Any) -> Reconciliation:
        counts = dict.fromkeys((each.name for each in COUNTS), 0) | {"lost": lost}
        return Reconciliation(name, (Comparison("ewr", "jfk", counts, {}),))

    monkeypatch.setattr(verify_module, "audit", audit)
    monkeypatch.setattr(
        verify_module.NamespaceClients, "identities", lambda _, aliases: dict(zip(aliases, aliases, strict=True))
    )
    federation = read(FILE % "topic: flights, when_full: spool")
    for each in routes(federation) if is_made else ():
        SpoolFolder(spool_folder(each, tmp_path) / "in").make()
    (found,) = verify(federation, state_folder=tmp_path)
    assert len([each for each in found.doubts if "are not at" in each and "--state" in each]) == count
    assert (found.verdict is Verdict.FAULTY) == bool(lost)


@pytest.mark.parametrize("is_made", [False, True])
def test_a_loss_is_reported_with_the_spool_of_a_table_that_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_made: bool
) -> None:
    """E.g. `verify` on another machine than the run's: what was not in the table yet counted as lost, and nothing was said of the spool."""
    counts = dict.fromkeys((each.name for each in COUNTS), 0) | {"lost": 1}
    monkeypatch.setattr(
        verify_module, "audit", lambda name, *_, **more: Reconciliation(name, (Comparison("ewr", "t", counts, {}),))
    )
    monkeypatch.setattr(
        verify_module.NamespaceClients, "identities", lambda _, aliases: dict(zip(aliases, aliases, strict=True))
    )
    head, spool = FILE.partition("tasks:")[0], tmp_path / "spool"
    task = f"{{pattern: archive, source: ewr, queue: a, table: {tmp_path}/t, spool: {spool}}}"
    if is_made:
        SpoolFolder(spool).make()
    (found,) = verify(read(f"{head}tasks:\n  t: {task}\n"))
    assert [f"{spool} of route" in each for each in found.doubts] == ([] if is_made else [True])


def test_a_topic_of_a_broker_without_subscriptions_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queues can be browsed, a topic cannot: what has arrived would count as lost."""
    read_ends: list[str] = []
    labels: dict[tuple[str, str], str] = {}

    def audit(name: str, routes: Any, places: Any, peek: Any, **more: Any) -> Reconciliation:
        read_ends.extend(map(str, places.values()))
        labels.update(more["members"].labels)
        return Reconciliation(name, ())

    monkeypatch.setattr(verify_module, "audit", audit)
    monkeypatch.setattr(
        verify_module.NamespaceClients, "identities", lambda _, aliases: dict(zip(aliases, aliases, strict=True))
    )
    file = FILE.replace(
        "jfk: {connection: env:JFK}", 'jfk: {connection: env:JFK}\n  art: {kind: amqp, url: "amqp://artemis"}'
    )
    (found,) = verify(read(file.replace("[ewr, jfk]", "[ewr, jfk, art]") % "topic: flights"))
    assert sorted(read_ends) == ["ewr/flights/Subscriptions/audit", "jfk/flights/Subscriptions/audit"]
    assert found.verdict is not Verdict.CLEAN
    assert len([each for each in found.unread if "a topic retains no messages" in each]) == 2
    assert len([each for each in found.unread if "numbers no messages" in each]) == 2
    # Copies of what entered at art are known as such at the others: they did not enter there.
    assert labels == {("ewr", "flights"): "ewr", ("jfk", "flights"): "jfk", ("art", "flights"): "art/flights"}
