"""The number of hops of forwarding."""

from __future__ import annotations

from isthmus.testing.administration import FakeAdministration
from isthmus.topology import QueueState, SubscriptionState, TopicState, lint, plan, read, wanted
from isthmus.topology.graph.forwarding import long_walks, walk_fault

HEAD = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\ntasks:\n"


def queues(path: str) -> list[QueueState]:
    names = path.split()
    return [QueueState(name=name, forward_to=target) for name, target in zip(names, [*names[1:], ""], strict=True)]


def test_four_hops_are_allowed_and_five_are_not() -> None:
    assert list(long_walks(queues("a b c d e"))) == []
    (walk,) = long_walks(queues("A b c D e f"))
    assert walk_fault(walk) == (
        "messages are forwarded 5 times: a → b → c → d → e → f; Service Bus dead-letters them after 4"
    )


def test_i1_a_walk_passes_topics_and_dead_letters() -> None:
    topic = TopicState(
        name="c",
        subscriptions=(SubscriptionState(name="x"), SubscriptionState(name="y", forward_dead_letters_to="D")),
    )
    entities = [*queues("a b c")[:2], topic, *queues("d e f")]
    assert list(long_walks(entities)) == [("a", "b", "c", "d", "e", "f")]


def test_i1_a_circle_is_found_whether_or_not_something_leads_to_it() -> None:
    circle = [QueueState(name="b", forward_to="c"), QueueState(name="c", forward_dead_letters_to="B")]
    (walk,) = long_walks(circle)
    assert walk_fault(walk) == "messages are forwarded in a circle: b → c → b"
    (walk,) = long_walks([QueueState(name="a", forward_to="b"), *circle])
    assert walk == ("a", "b", "c", "b")
    (walk,) = long_walks([QueueState(name="a", forward_to="a")])
    assert walk == ("a", "a")


def test_i2_of_a_walk_that_is_too_long_only_the_longest_is_reported() -> None:
    assert list(long_walks([*queues("x e"), *queues("a b c d e f g")])) == [("a", "b", "c", "d", "e", "f", "g")]


def test_hops_count_over_all_tasks_of_a_file() -> None:
    text = (
        f"{HEAD}  one: {{pattern: chain, members: [ewr, jfk], forward: {{a: b, b: c, c: d}}}}\n"
        "  two: {pattern: chain, members: [jfk], forward: {d: e, e: f}}\n"
    )
    (fault,) = lint(text)
    assert fault.message == (
        "at jfk messages are forwarded 5 times: a → b → c → d → e → f; Service Bus dead-letters them after 4 "
        "(tasks: one, two)"
    )
    assert fault.line == 7
    assert lint(text.replace("e: f", "x: f")) == []


def test_hops_of_what_exists_count_in_the_plan() -> None:
    federation = read(f"{HEAD}  one: {{pattern: chain, members: [ewr], forward: {{a: b, b: c}}}}\n")
    theirs = [QueueState(name="C", forward_to="A"), "a"]
    namespace = FakeAdministration("ewr.test", queues=theirs)
    made = plan(federation, {"ewr": namespace.observe("ewr", wanted(federation)["ewr"])})
    (fault,) = made.faults
    assert "forwarded in a circle: a → b → c → a" in fault.message
