"""Targets for messages of several namespaces, opened as needed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

import pytest

from isthmus.operations.copy_target import TargetGoneError
from isthmus.operations.redrive import leg as module
from isthmus.operations.redrive.leg import NAMESPACES_AT_ONCE, Legs


class Targets:
    """Opens targets; `away` are the routes whose target is not to be reached."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open: set[tuple[str, str]] = set()
        self.opened: list[tuple[str, str]] = []
        self.most = 0
        self.away: set[str] = set()
        targets = self

        class Target:
            def __init__(self, spec: Any, origin: str, *, meanwhile: Callable[[], None]) -> None:
                meanwhile()
                if spec.name in targets.away:
                    raise TargetGoneError("away")
                self.key = spec.name, origin
                targets.opened.append(self.key)
                targets.open.add(self.key)
                targets.most = max(targets.most, len(targets.open))

            def __enter__(self) -> Self:
                return self

            def __exit__(self, *_: object) -> None:
                targets.open.remove(self.key)

        monkeypatch.setattr(module, "CopyTarget", Target)


@pytest.fixture(name="targets")
def _targets(monkeypatch: pytest.MonkeyPatch) -> Targets:
    return Targets(monkeypatch)


def made(*routes: str) -> list[Any]:
    return [(SimpleNamespace(name=route), ()) for route in routes]


def test_i1_however_many_namespaces_are_named_few_targets_are_open_at_once(targets: Targets) -> None:
    origins = [f"forged-{number:03}" for number in range(100)]
    with Legs(made("a", "b"), origins) as legs:
        for origin in origins:
            assert [leg.route for leg in legs.of(origin)] == ["a", "b"]
        assert {origin for _, origin in targets.open} == set(origins[-NAMESPACES_AT_ONCE:])
    assert targets.most == 2 * NAMESPACES_AT_ONCE
    assert not targets.open


def test_those_that_were_used_last_stay_open(targets: Targets) -> None:
    with Legs(made("a"), "abcdefgh") as legs:
        for origin in "abcdefgh":
            legs.of(origin)
            assert legs.of("a") is legs.of("a")
    assert [origin for _, origin in targets.opened] == list("abcdefgh")


def test_where_all_are_from_one_namespace_it_need_not_be_named(targets: Targets) -> None:
    with Legs(made("a"), {"ewr-1"}) as legs:
        assert legs.of(None) is legs.of("ewr-1")
        assert ("ewr-1" in legs, "jfk-1" in legs) == (True, False)


def test_a_target_that_is_unavailable_leaves_no_other_open(targets: Targets) -> None:
    targets.away.add("b")
    renewed: list[int] = []
    with Legs(made("a", "b"), {"ewr-1"}) as legs, pytest.raises(TargetGoneError):
        legs.of(None, lambda: renewed.append(1))
    assert (targets.open, len(renewed)) == (set(), 2)
