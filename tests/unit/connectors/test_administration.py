from __future__ import annotations

import pickle

import pytest

from isthmus.connectors.administration import AdministrationError, Administrations
from isthmus.connectors.secret import SecretError
from isthmus.errors import ConfigError
from isthmus.testing.administration import FakeAdministration, fake_opener
from isthmus.topology import Change, NamespaceRef, TopicState, plan, read

FEDERATION = read(
    "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\n  lga: {connection: env:C}\n"
    "  ord: {connection: env:D}\ntasks:\n  x: {pattern: all-active, topic: x, duplicates: message-id, members: [ewr, jfk, lga]}\n",
    "a.yaml",
)


@pytest.fixture
def namespaces() -> dict[str, FakeAdministration]:
    return {alias: FakeAdministration(f"{alias}.test") for alias in ("ewr", "jfk", "lga")}


def test_what_is_planned_is_made_in_order(namespaces: dict[str, FakeAdministration]) -> None:
    reported: list[Change] = []
    with Administrations(FEDERATION, fake_opener(namespaces)) as administrations:
        made = plan(FEDERATION, administrations.observe())
        applied = administrations.apply(made, reported.append)
        assert applied.done == made.changes == tuple(reported)
        assert applied.failed is None
        assert not plan(FEDERATION, administrations.observe()).changes
    assert all(namespace.closed for namespace in namespaces.values())


def test_i1_all_namespaces_that_do_not_answer_are_named_at_once(namespaces: dict[str, FakeAdministration]) -> None:
    namespaces["jfk"].away = True

    def opener(namespace: NamespaceRef) -> FakeAdministration:
        if namespace.alias == "lga":
            raise SecretError("env:C", "the environment variable is not set", "export C=…")
        return namespaces[namespace.alias]

    with Administrations(FEDERATION, opener) as administrations, pytest.raises(ConfigError) as raised:
        administrations.observe()
    assert [str(fault) for fault in raised.value.faults] == [
        "a.yaml:4:3: namespace jfk: jfk.test: cannot be reached (told to); check host, port and network",
        "a.yaml:5:3: namespace lga: env:C: the environment variable is not set; export C=…",
    ]


def test_i2_a_failed_apply_says_what_was_done_and_can_be_run_again(namespaces: dict[str, FakeAdministration]) -> None:
    namespaces["jfk"].refuse_after = 2
    with Administrations(FEDERATION, fake_opener(namespaces)) as administrations:
        made = plan(FEDERATION, administrations.observe())
        applied = administrations.apply(made)
        assert applied.failed is not None
        assert applied.failed.alias == "jfk"
        assert (*applied.done, applied.failed, *applied.pending) == made.changes
        assert applied.pending
        assert applied.to_dict()["failed"]["error"]["code"] == "administration"
        namespaces["jfk"].refuse_after = None
        again = plan(FEDERATION, administrations.observe())
        assert again.changes == (applied.failed, *applied.pending)
        assert administrations.apply(again).failed is None


def test_a_plan_with_faults_changes_nothing(namespaces: dict[str, FakeAdministration]) -> None:
    namespaces["jfk"] = FakeAdministration("jfk.test", [TopicState(name="x", duplicate_detection_ms=0)])
    with Administrations(FEDERATION, fake_opener(namespaces)) as administrations:
        made = plan(FEDERATION, administrations.observe())
        with pytest.raises(ConfigError, match="duplicate detection"):
            administrations.apply(made)
    assert not any(namespace.changes for namespace in namespaces.values())


def test_an_error_pickles_and_holds_no_secret() -> None:
    error = AdministrationError("h", "SharedAccessKey=hunter2 is wrong", "check it")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "h: SharedAccessKey=*** is wrong; check it"
