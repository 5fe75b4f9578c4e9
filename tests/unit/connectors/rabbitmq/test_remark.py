"""isthmus.connectors.rabbitmq.remark: remarks about queues that would lose messages."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.connectors.rabbitmq.remark import audit_remark, has_default_limit, remarks_of

QUORUM: dict[str, Any] = {"type": "quorum", "arguments": {"x-queue-type": "quorum"}}


@pytest.mark.parametrize(
    ("queue", "version", "expected"),
    [
        (QUORUM, "3.13.7", []),
        (QUORUM, "4.1.0", ["limit of 20"]),
        (QUORUM | {"arguments": {"x-delivery-limit": -1}}, "4.1.0", []),
        (QUORUM | {"arguments": {"x-delivery-limit": 3}}, "3.10.8", ["limit of 3"]),
        (QUORUM | {"effective_policy_definition": {"delivery-limit": 5}}, "3.10.8", ["limit of 5"]),
        (QUORUM | {"effective_policy_definition": []}, "3.10.8", []),
        ({"type": "classic", "arguments": {}}, "4.1.0", []),
        ({"type": "stream"}, "4.1.0", ["is a stream"]),
        ({}, "", []),
    ],
)
def test_queues_that_lose_what_comes_back_often_are_reported(
    queue: dict[str, Any], version: str, expected: list[str]
) -> None:
    found = list(remarks_of(queue, version, is_rejected_to=False))
    assert len(found) == len(expected)
    assert all(text in remark for text, remark in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    ("queue", "kept_ms", "expected"),
    [
        ({"type": "quorum"}, 0, "is not a stream"),
        ({"type": "stream", "arguments": {}}, 0, ""),
        ({"type": "stream", "arguments": {"x-max-age": "86400s"}}, 86_400_000, ""),
        ({"type": "stream", "arguments": {"x-max-age": "1D"}}, 86_400_000, ""),
        ({"type": "stream", "arguments": {"x-max-age": "2s"}}, 1_001, ""),
        ({"type": "stream", "effective_policy_definition": {"max-age": "1D"}}, 86_400_000, ""),
        ({"type": "stream", "arguments": {"x-max-age": "soon"}}, 86_400_000, ""),
        (
            {"type": "stream", "arguments": {"x-max-age": "86400s"}},
            604_800_000,
            "keeps messages 1d, and not 7d as audit",
        ),
        ({"type": "stream", "arguments": {"x-max-age": "86400s"}}, 0, "keeps messages 1d, and not for ever as audit"),
        ({"type": "stream", "arguments": {}}, 86_400_000, "keeps messages for ever, and not 1d as audit"),
    ],
)
def test_a_record_that_keeps_messages_as_the_file_said_before_is_reported(
    queue: dict[str, Any], kept_ms: int, expected: str
) -> None:
    found = audit_remark(queue, kept_ms)
    assert found.startswith(expected)
    assert bool(found) is bool(expected)


@pytest.mark.parametrize(
    ("queue", "count"),
    [
        ({"type": "classic", "arguments": {}}, 1),
        ({"type": "classic", "arguments": {"x-dead-letter-exchange": ""}}, 0),
        ({"type": "classic", "effective_policy_definition": {"dead-letter-exchange": "dlx"}}, 0),
    ],
)
def test_a_queue_without_the_dead_letter_exchange_that_the_file_names_is_reported(
    queue: dict[str, Any], count: int
) -> None:
    assert len(list(remarks_of(queue, "4.1.0", is_rejected_to=True))) == count


def test_what_is_over_the_limit_goes_where_dead_letters_go() -> None:
    (remark,) = remarks_of(QUORUM | {"arguments": {"x-dead-letter-exchange": "dlx"}}, "4.0.1", is_rejected_to=True)
    assert "goes to its dead-letter exchange" in remark


def test_versions() -> None:
    assert [has_default_limit(each) for each in ("4.0.0", "10.1", "3.13.1", "", "x")] == [
        True,
        True,
        False,
        False,
        False,
    ]
