"""One entity that several tasks want."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from isthmus.topology import EntityState, Federation, NamespaceRef, QueueState, RuleState, SubscriptionState, TopicState
from isthmus.topology.file.reference import SecretReference
from isthmus.topology.model import Task
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.planning.wanted import contradictions, wanted

FEDERATION = Federation(
    namespaces={"ewr": NamespaceRef("ewr", SecretReference.parse("env:A"))}, tasks={}, file="a.yaml"
)


class Wanting:
    """A pattern whose tasks want what a test says, and that has no routes."""

    def __init__(self, entities: dict[str, EntityState]) -> None:
        self.entities = entities

    def wanted(self, task: Task) -> Iterator[tuple[str, EntityState]]:
        yield "ewr", self.entities[task.name]

    def routes(self, task: Task) -> Iterator[None]:
        yield from ()


def federation(monkeypatch: pytest.MonkeyPatch, *entities: EntityState) -> Federation:
    named = {f"t{number}": entity for number, entity in enumerate(entities, 1)}
    monkeypatch.setitem(PATTERNS, "wanting", Wanting(named))  # type: ignore[arg-type]
    tasks = {name: Task(name=name, pattern="wanting", members=("ewr",)) for name in named}
    return replace(FEDERATION, tasks=tasks)


def merged(monkeypatch: pytest.MonkeyPatch, *entities: EntityState) -> EntityState:
    made = federation(monkeypatch, *entities)
    assert list(contradictions(made)) == []
    (entity,) = wanted(made)["ewr"]
    return entity


def test_i1_settings_of_two_tasks_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = merged(
        monkeypatch,
        QueueState(name="Orders", max_delivery_count=10, forward_dead_letters_to="isthmus.T", initial_ttl_ms=5),
        QueueState(name="orders", dead_letters_expired=True, forward_dead_letters_to="ISTHMUS.t", initial_ttl_ms=9),
    )
    assert queue == QueueState(
        name="Orders",
        max_delivery_count=10,
        dead_letters_expired=True,
        forward_dead_letters_to="isthmus.T",
        initial_ttl_ms=9,
    )


def test_i1_subscriptions_of_two_tasks_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = (RuleState("r", "a = 1"),)
    topic = merged(
        monkeypatch,
        TopicState(name="t", subscriptions=(SubscriptionState(name="S"), SubscriptionState(name="x"))),
        TopicState(name="T", subscriptions=(SubscriptionState(name="s", rules=rules, forward_to="q"),)),
        TopicState(name="T", subscriptions=(SubscriptionState(name="s", rules=(RuleState("R", "a  =  1"),)),)),
    )
    assert topic == TopicState(
        name="t", subscriptions=(SubscriptionState(name="S", rules=rules, forward_to="q"), SubscriptionState(name="x"))
    )


@pytest.mark.parametrize(
    ("entities", "message"),
    [
        ([QueueState(name="x"), TopicState(name="X")], "tasks t1 and t2 want both a queue and a topic x at ewr"),
        (
            [QueueState(name="x", max_delivery_count=10), QueueState(name="x", max_delivery_count=2000)],
            "tasks t1 and t2 want queue x with MaxDeliveryCount 10 and 2000 at ewr",
        ),
        (
            [QueueState(name="x", forward_to="a"), QueueState(name="x", forward_to="")],
            "want queue x with ForwardTo a and none",
        ),
        (
            [TopicState(name="x", duplicate_detection_ms=0), TopicState(name="x", duplicate_detection_ms=600_000)],
            "want topic x with DuplicateDetection off/off and 10m/10m",
        ),
        (
            [
                TopicState(name="x", duplicate_detection_ms=0),
                TopicState(name="x", duplicate_detection_ms=0, keyless_detection_ms=600_000),
            ],
            "want topic x with DuplicateDetection off/off and off/10m",
        ),
        (
            [
                TopicState(name="x", subscriptions=(SubscriptionState(name="s", rules=(RuleState("r", text),)),))
                for text in ("a = 1", "a = 2")
            ],
            "want subscription s of x with different rules",
        ),
    ],
)
def test_i2_what_contradicts_is_a_fault_in_either_order(
    monkeypatch: pytest.MonkeyPatch, entities: Sequence[EntityState], message: str
) -> None:
    (fault,) = contradictions(federation(monkeypatch, *entities))
    assert message in fault.message
    assert fault.hint
    assert len(list(contradictions(federation(monkeypatch, *reversed(entities))))) == 1


def test_a_task_without_routes_claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = federation(monkeypatch, QueueState(name="x"))
    assert [each.name for each in wanted(made)["ewr"]] == ["x"]
