"""The changes at the standby member: order, ownership, conflicts, and the state after them."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from isthmus.topology.pair.description import CLOSED, AccessRule, Description, Key, closed, kept
from isthmus.topology.pair.difference import Drift, Step, difference


def queue(name: str, **settings: object) -> Description:
    return Description(kind="queue", names=(name,), settings=settings)


def topic(name: str, **settings: object) -> Description:
    return Description(kind="topic", names=(name,), settings=settings)


def subscription(topic_name: str, name: str, **settings: object) -> Description:
    return Description(kind="subscription", names=(topic_name, name), settings=settings)


def rule(topic_name: str, name: str, rule_name: str, text: str = "1=1") -> Description:
    return Description(kind="rule", names=(topic_name, name, rule_name), settings={"filter": ("sql", text)})


def snapshot(*descriptions: Description) -> dict[Key, Description]:
    return kept(descriptions)


def shown(drift: Drift) -> list[str]:
    return [str(step) for step in drift.steps]


def test_targets_of_forwarding_are_created_before_and_deleted_after() -> None:
    """I2."""
    existing = snapshot(
        queue("a", forward_to="b"),
        queue("b", forward_to="C"),
        queue("c"),
        topic("t"),
        subscription("t", "s", forward_to="a"),
    )
    assert [[step.entity.path for step in group] for group in difference(existing, {}).groups] == [
        ["c", "t"],
        ["b"],
        ["a"],
        ["t/Subscriptions/s"],
    ]
    deletion = difference({}, existing, made=existing.keys())
    assert [[step.entity.path for step in group] for group in deletion.groups] == [["a"], ["b"], ["c", "t"]]


def test_a_ring_of_forwarding_is_closed_by_an_update() -> None:
    """I2."""
    existing = snapshot(queue("a", forward_to="b"), queue("b", forward_to="a"), queue("me", forward_to="me"))
    drift = difference(existing, {})
    created = {step.entity.path: step.entity.settings["forward_to"] for step in drift.steps if step.action == "create"}
    assert sorted(created.values()) == ["", "", "b"] or sorted(created.values()) == ["", "", "a"]
    assert created["me"] == ""
    assert [step.action for step in drift.groups[-1]] == ["update", "update"]


def test_a_subscription_is_created_with_its_rules() -> None:
    existing = snapshot(topic("t"), subscription("t", "s"), rule("t", "s", "big", "size > 5"))
    (_, (step,)) = difference(existing, {}).groups
    assert [each.names[-1] for each in step.rules] == ["big"]


def test_rules_of_an_existing_subscription_are_made_before_others_go() -> None:
    wanted = snapshot(topic("t"), subscription("t", "s"), rule("t", "s", "big"), rule("t", "s", "same", "a=2"))
    existing = snapshot(topic("t"), subscription("t", "s"), rule("t", "s", "$Default"), rule("t", "s", "same", "a=1"))
    assert shown(difference(wanted, existing)) == [
        "+ rule t/Subscriptions/s/Rules/big",
        "~ rule t/Subscriptions/s/Rules/same: Filter sql, a=1 → sql, a=2",
        "- rule t/Subscriptions/s/Rules/$Default",
    ]


def test_only_what_pairing_made_is_deleted() -> None:
    """I3."""
    existing = snapshot(queue("mine"), queue("theirs"))
    drift = difference({}, existing, made={("mine",)})
    assert shown(drift) == ["- queue mine"]
    assert [each.path for each in drift.foreign] == ["theirs"]
    assert drift.is_none is False
    assert shown(difference({}, existing, made={("mine",)}, may_delete_foreign=True)) == [
        "- queue mine",
        "- queue theirs",
    ]


def test_a_topic_with_a_foreign_subscription_stays() -> None:
    """I3."""
    existing = snapshot(topic("t"), subscription("t", "theirs"), rule("t", "theirs", "$Default"))
    drift = difference({}, existing, made={("t",)})
    assert drift.groups == ()
    assert [each.path for each in drift.foreign] == ["t", "t/Subscriptions/theirs"]


def test_what_cannot_change_is_a_conflict_unless_pairing_made_it() -> None:
    """I4."""
    wanted = snapshot(queue("q", requires_session=True, lock_duration=5000))
    existing = snapshot(queue("q", requires_session=False, lock_duration=6000))
    drift = difference(wanted, existing)
    assert drift.groups == ()
    assert str(drift.conflicts[0]) == (
        "! q: RequiresSession no → yes cannot change while the queue exists; delete it at the standby member, or exclude it"
    )
    assert [[str(step) for step in group] for group in difference(wanted, existing, made={("q",)}).groups] == [
        ["- queue q"],
        ["+ queue q"],
    ]


def test_a_queue_in_the_place_of_a_topic_is_a_conflict_with_all_below() -> None:
    """I4."""
    wanted = snapshot(topic("x"), subscription("x", "s"), rule("x", "s", "r"))
    drift = difference(wanted, snapshot(queue("X")))
    assert drift.groups == ()
    assert [each.path for each in drift.conflicts] == ["X"]


def test_a_replaced_topic_takes_its_subscriptions_with_it_but_no_foreign_one() -> None:
    """I3, I4."""
    wanted = snapshot(topic("t", enable_partitioning=True), subscription("t", "s"), rule("t", "s", "r"))
    existing = snapshot(topic("t", enable_partitioning=False), subscription("t", "s"), rule("t", "s", "r"))
    made = {("t",), ("t", "s")}
    assert [[str(step) for step in group] for group in difference(wanted, existing, made=made).groups] == [
        ["- topic t"],
        ["+ topic t"],
        ["+ subscription t/Subscriptions/s: rule r"],
    ]
    with_foreign = {**existing, **snapshot(subscription("t", "theirs"))}
    assert difference(wanted, with_foreign, made=made).groups == ()


def test_keys_are_compared_and_never_shown() -> None:
    secret = "aGVsbG8gd29ybGQ="
    old = AccessRule.of("app", ["Send"], secret, secret)
    new = AccessRule.of("app", ["Send"], secret + "2", secret)
    drift = difference(
        snapshot(queue("q", authorization_rules=(new,))), snapshot(queue("q", authorization_rules=(old,)))
    )
    assert shown(drift) == ["~ queue q: AuthorizationRules app: keys"]
    assert secret not in repr(drift)
    assert difference(
        snapshot(queue("q", authorization_rules=(old,))), snapshot(queue("q", authorization_rules=(old,)))
    ).is_none


def test_what_a_side_does_not_report_is_no_difference() -> None:
    assert difference(snapshot(queue("q", max_size=5)), snapshot(queue("q", max_size=None))).is_none
    assert difference(snapshot(queue("q", max_size=None)), snapshot(queue("q", max_size=5))).is_none


def test_entities_of_isthmus_and_excluded_ones_are_left_alone() -> None:
    existing = [
        queue("isthmus.claims"),
        topic("flights"),
        subscription("flights", "isthmus.flights.jfk"),
        queue("local-1"),
        queue("LOCAL"),
    ]
    assert [each.path for each in kept(existing, ["local*"]).values()] == ["flights"]


def test_a_fenced_member_has_closed_entities() -> None:
    existing = closed(snapshot(queue("q"), topic("t"), subscription("t", "s", status="Active"), rule("t", "s", "r")))
    assert [each.settings.get("status") for each in existing.values()] == [*CLOSED.values(), None]


# ---- I1, I5: the steps, made, leave nothing apart

_NAMES = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def _snapshots(draw: st.DrawFn) -> dict[Key, Description]:
    entities: list[Description] = []
    names = draw(st.lists(_NAMES, unique=True))
    targets = st.sampled_from(["", *names])
    for name in names:
        settings: dict[str, object] = {
            "requires_duplicate_detection": draw(st.booleans()),
            "lock": draw(st.integers(0, 1)),
        }
        if draw(st.booleans()):
            entities.append(queue(name, forward_to=draw(targets), **settings))
            continue
        entities.append(topic(name, **settings))
        for below in draw(st.lists(st.sampled_from(["s", "u"]), unique=True)):
            entities.append(subscription(name, below, forward_to=draw(targets), requires_session=draw(st.booleans())))
            entities += [
                rule(name, below, each, draw(st.sampled_from("xy")))
                for each in draw(st.lists(st.sampled_from(["r", "v"]), unique=True))
            ]
    return snapshot(*entities)


def _made(before_steps: dict[Key, Description], groups: Iterable[Iterable[Step]]) -> dict[Key, Description]:
    """What a namespace holds after the steps; it refuses what a namespace refuses."""
    existing = dict(before_steps)
    for group in groups:
        before = dict(existing)
        for step in group:
            key = step.entity.key
            if step.action == "delete":
                assert key in before
                existing = {each: value for each, value in existing.items() if each[: len(key)] != key}
                continue
            assert (key in before) == (step.action == "update")
            assert all(key[:length] in before for length in range(1, len(key)))
            for target in step.entity.forwards:
                assert (target,) in before or (target,) == key
            existing[key] = step.entity
            for each in step.rules:
                existing[each.key] = each
    return existing


@given(_snapshots(), _snapshots(), st.booleans())
def test_the_steps_lead_to_what_is_wanted(
    wanted: dict[Key, Description], existing: dict[Key, Description], own: bool
) -> None:
    """I1, I5."""
    made = frozenset(existing) if own else frozenset()
    drift = difference(wanted, existing, made=made)
    after = _made(existing, drift.groups)
    again = difference(wanted, after, made=made)
    assert again.groups == ()
    assert again.conflicts == drift.conflicts
    if own:
        assert after == wanted
        assert drift.conflicts == ()
        assert drift.foreign == ()
    else:
        lost = {key for key in existing if key not in after}
        assert all(len(key) == 3 for key in lost)  # rules only
