"""isthmus.connectors.kafka.group: a coordinator that is being chosen is waited for."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from isthmus.connectors.kafka import group
from isthmus.connectors.kafka.cluster import TopicView
from isthmus.errors import ConnectionLostError


class Consumer:
    """Answers once it has refused so often."""

    refusals: int
    code: int

    def __init__(self, settings: Any) -> None:
        self.asked = 0

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self.asked += 1
        if self.asked <= self.refusals:
            raise KafkaException(KafkaError(self.code))
        return [TopicPartition(each.topic, each.partition, 7 if each.partition else -1001) for each in places]

    def close(self) -> None:
        pass


@pytest.mark.parametrize("code", [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS])
def test_a_coordinator_that_is_being_chosen_is_waited_for(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(group, "Consumer", Consumer)
    monkeypatch.setattr(group, "look_at", lambda *_: TopicView("c", 2))
    monkeypatch.setattr(group, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(Consumer, "code", code, raising=False)
    monkeypatch.setattr(Consumer, "refusals", 2, raising=False)
    offsets = group.GroupOffsets({"bootstrap_servers": "a"})
    assert offsets.committed("g", "t") == {1: 7}
    monkeypatch.setattr(group, "COORDINATOR_SECONDS", 0.0)
    monkeypatch.setattr(Consumer, "refusals", 1 << 30, raising=False)
    with pytest.raises(ConnectionLostError):
        offsets.committed("g", "t")
