"""A forced fail-over against members in memory, the old one of which does not answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from harness.fixture.pair_in_memory import FILE, FakeMember, Hanging, session_in
from isthmus.connectors.administration import AdministrationError
from isthmus.connectors.servicebus.administration.message_count import Counts
from isthmus.connectors.servicebus.administration.pair.holds_messages import HoldsMessagesError
from isthmus.errors import ConnectionLostError, IsthmusError
from isthmus.pairing import pair_session
from isthmus.pairing.failover import failover
from isthmus.pairing.failover.moved import Moved
from isthmus.pairing.keeper.keeper import Keeper
from isthmus.pairing.keeper.round import Comparison
from isthmus.pairing.pair_error import SameNamespaceError, StoppingError
from isthmus.pairing.pair_run import PairRun
from isthmus.pairing.pair_session import PairSession
from isthmus.pairing.state.marker import follow
from isthmus.pairing.state.state import Fence, PairState, Phase
from isthmus.pairing.state.state_file import NotPairedError, Stamp, SupersededError
from isthmus.topology.file.source import load
from isthmus.topology.pair.description import Description
from isthmus.topology.pair.difference import Drift, Step


@pytest.fixture
def members() -> dict[str, FakeMember]:
    return {alias: FakeMember(alias) for alias in ("ewr", "jfk")}


@pytest.fixture
def session(tmp_path: Path, members: dict[str, FakeMember]) -> PairSession:
    return session_in(tmp_path, members)


def fenced_standby(session: PairSession, members: dict[str, FakeMember]) -> None:
    """As after a fail-over to ewr and its end: jfk is fenced."""
    members["jfk"].statuses["orders"] = "Disabled"
    session.file.save(PairState(pair="contoso", active="ewr", standby="jfk", epoch=2, fences={"jfk": Fence.CLOSED}))


def test_a_fenced_member_is_opened_without_asking_the_old_one(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    fenced_standby(session, members)
    members["ewr"].hangs = True
    assert session.force().phase is Phase.OPENING
    with pytest.raises(Hanging):  # asked last, for its fence
        session.finish()
    found = session.state()
    assert (found.active, found.phase, found.fence_of("ewr")) == ("jfk", Phase.STEADY, Fence.PENDING)
    assert members["jfk"].statuses == {"orders": "Active"}
    assert members["jfk"].marker == found.marker


def test_what_a_fenced_standby_holds_is_known_and_that_of_an_open_one_is_no_remainder(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    """After a forced fail-over it is not delivered before a fail-back, and the pair is steady and in step."""
    fenced_standby(session, members)
    assert session.keeper.left_behind(session.state()) == {}
    members["jfk"].backlog = Counts(active=3)
    assert session.keeper.left_behind(session.state())["orders"]["active"] == 3
    session.file.save(PairState(pair="contoso", active="ewr", standby="jfk", epoch=2))
    assert session.keeper.left_behind(session.state()) == {}


def test_the_run_blocks_no_fail_over_while_it_notifies_the_members(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    fenced_standby(session, members)
    ended = []

    def reported() -> None:
        with session.file.locked(0.0):
            ended.append("free")

    members["ewr"].on_marker = reported
    PairRun(session)._round()
    assert ended == ["free"]


def test_a_forced_fail_over_to_an_open_member_needs_neither_a_secret_nor_a_client(tmp_path: Path) -> None:
    """It may be the lost region that the secrets are in."""
    file = tmp_path / "isthmus.yaml"
    file.write_text(FILE)
    federation = load(str(file))
    with PairSession(federation, federation.pairs["contoso"], tmp_path / "state") as session:
        session.file.save(PairState(pair="contoso", active="ewr", standby="jfk"))
        assert session.force().active == "jfk"


def test_a_run_elsewhere_that_sees_sends_stopped_closes_nothing_for_good(
    session: PairSession, members: dict[str, FakeMember], tmp_path: Path
) -> None:
    """It does not know of the fail-over yet, and synchronises the other member with what the fail-over has changed."""
    (tmp_path / "elsewhere").mkdir()
    elsewhere = session_in(tmp_path / "elsewhere", members)
    members["jfk"].statuses["own"] = "Disabled"
    for each in (session, elsewhere):
        each.file.save(PairState(pair="contoso", active="ewr", standby="jfk"))

    def note(text: str) -> None:
        if text.startswith(Phase.CONSUMING):
            with pytest.raises(SupersededError):
                PairRun(elsewhere)._round()

    session.fail_over(consume_ms=0, leaves=False, note=note)
    PairRun(elsewhere)._round()
    assert elsewhere.state().active == "jfk"
    assert members["jfk"].statuses == {"orders": "Active", "own": "Disabled"}


def test_i4_a_comparison_that_a_fail_over_elsewhere_has_overtaken_changes_nothing(
    session: PairSession, members: dict[str, FakeMember], tmp_path: Path
) -> None:
    """The markers were read before the fail-over said that it is under way."""
    state = PairState(pair="contoso", active="ewr", standby="jfk")
    session.file.save(state)
    members["ewr"].marker = state.begin(1.0, statuses={}, consume_ms=0, leaves=False).marker
    members["ewr"].statuses["orders"] = "SendDisabled"
    with pytest.raises(SupersededError):
        session.keeper.observe(state)
    for verb in (session.sync, session.break_up, lambda: session.fail_over(consume_ms=0, leaves=False)):
        with pytest.raises(SupersededError):
            verb()
    assert members["jfk"].statuses == {"orders": "Active"}


@pytest.mark.parametrize("is_over", [False, True])
def test_i4_a_round_does_not_replace_what_a_fail_over_elsewhere_says(
    session: PairSession, members: dict[str, FakeMember], is_over: bool
) -> None:
    """It begins after the round has read the markers, and before that writes to the members which one is active."""
    state = PairState(pair="contoso", active="ewr", standby="jfk")
    session.file.save(state)
    begun = state.begin(1.0, statuses={}, consume_ms=0, leaves=False)
    said = (begun.switched(2.0) if is_over else begun).marker

    def begin() -> None:
        for each in members.values():
            each.marker = said

    members["ewr"].on_marker = begin
    with pytest.raises(SupersededError):
        PairRun(session)._round()
    assert [each.marker for each in members.values()] == [said, said]
    assert (session.state().epoch, session.state().active) == (1, "ewr")


def test_the_end_of_a_fail_over_does_not_replace_what_a_later_one_elsewhere_says(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    """The next reader of the markers would not see it."""
    state = PairState(pair="contoso", active="ewr", standby="jfk")
    session.file.save(state)
    later: list[Mapping[str, object]] = []

    def force() -> None:
        """Once the fail-over has written the markers of its end but those of the old member."""
        if members["jfk"].marker.get("epoch") == 2 and not members["jfk"].marker.get("under_way") and not later:
            found = follow(state, members["jfk"].marker, 1.0).begin_forced(2.0)
            later.append(found.marker)
            for each in members.values():
                each.marker = found.marker

    members["ewr"].on_marker = force
    session.fail_over(consume_ms=0, leaves=False)
    assert later
    assert [each.marker for each in members.values()] == [later[0], later[0]]


def reported(members: dict[str, FakeMember], state: PairState) -> None:
    """Both members have the marker of the pair."""
    for member in members.values():
        member.marker = state.marker


def test_a_fail_over_that_was_given_up_is_reported_to_others(
    session: PairSession, members: dict[str, FakeMember], tmp_path: Path
) -> None:
    """Otherwise a fail-over elsewhere would have the same epoch, and neither of the two would follow the other."""
    (tmp_path / "elsewhere").mkdir()
    elsewhere = session_in(tmp_path / "elsewhere", members)
    state = PairState(pair="contoso", active="ewr", standby="jfk")
    elsewhere.file.save(state)
    reported(members, state)
    session.file.save(state.begin(1.0, statuses={}, consume_ms=0, leaves=False))
    session.abort()
    assert elsewhere.keeper.follow(elsewhere.state()).epoch == session.state().epoch == 2


def test_a_pair_that_is_broken_while_messages_are_counted_stays_broken(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    session.file.save(PairState(pair="contoso", active="ewr", standby="jfk"))
    members["ewr"].on_counts = lambda: (session.break_up(), None)[1]
    with pytest.raises(NotPairedError):
        PairRun(session)._round()
    with pytest.raises(NotPairedError):
        session.state()


def test_a_pair_that_is_broken_while_the_markers_are_read_stays_broken(
    session: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = PairState(pair="contoso", active="ewr", standby="jfk")
    session.file.save(state)
    marker = state.begin_forced(1.0).marker

    def read(pair: str) -> Mapping[str, object]:
        session.file.remove()
        return marker

    monkeypatch.setattr(members["jfk"], "read_marker", read)
    with pytest.raises(NotPairedError):
        PairRun(session)._round()
    with pytest.raises(NotPairedError):
        session.state()


def test_a_pair_that_is_broken_while_the_members_are_notified_leaves_no_marker(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    session.file.save(PairState(pair="contoso", active="ewr", standby="jfk"))

    def broken() -> None:
        members["jfk"].on_marker = lambda: None
        session.break_up()

    members["jfk"].on_marker = broken
    with pytest.raises(NotPairedError):
        PairRun(session)._round()
    assert [member.marker for member in members.values()] == [{}, {}]


def test_the_alias_switches_by_a_saving_that_has_the_stamp_of_the_one_before(
    session: PairSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.file.save(PairState(pair="contoso", active="ewr", standby="jfk"))
    stamp = Stamp(7, 1_000_000_000, 500)
    monkeypatch.setattr(session.file, "stamp", lambda: stamp)
    now_ns = [1_003_000_000]
    monkeypatch.setattr(pair_session.time, "time_ns", lambda: now_ns[0])
    look = session.lead_reader({"ewr": ("e", 1), "jfk": ("j", 2)})
    assert look().host == "e"
    session.force()
    assert look().host == "j"
    now_ns[0] += 1_000_000_000
    look()
    monkeypatch.setattr(session.file, "load", lambda: pytest.fail("it has not changed"))
    assert look().host == "j"


def test_what_is_made_while_messages_are_counted_is_known_as_made_by_pairing(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    session.file.save(PairState(pair="contoso", active="ewr", standby="jfk"))

    def sync() -> None:
        members["ewr"].statuses["fresh"] = "Active"
        session.sync()

    members["ewr"].on_counts = sync
    PairRun(session)._round()
    found = session.state()
    assert found.made_here == ("fresh",)
    assert found.seen_at


def test_a_reading_of_the_standby_member_is_given_up_where_the_active_one_gives_no_answer(
    session: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Future[list[Description]]()
    monkeypatch.setattr(members["jfk"], "begin_descriptions", lambda: begun)
    members["ewr"].is_away = True
    with pytest.raises(ConnectionLostError):
        session.keeper.compare(PairState(pair="contoso", active="ewr", standby="jfk"))
    assert begun.cancelled()


def test_i5_what_a_list_of_the_active_member_does_not_report_is_not_deleted(
    session: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    session.file.save(PairState(pair="contoso", active="ewr", standby="jfk", made={"jfk": ("orders", "gone")}))
    members["jfk"].statuses["gone"] = "Active"
    deleted = []

    def make(step: Step, *, with_messages: bool = False) -> None:
        deleted.append(str(step))
        del members["jfk"].statuses[step.entity.path]

    monkeypatch.setattr(members["jfk"], "make", make)
    monkeypatch.setattr(members["ewr"], "descriptions", list)
    _, found = session.sync()
    assert deleted == [str(step) for step in found.done] == ["- queue gone"]
    assert [str(error) for _, error in found.failed] == [
        "ewr/orders exists, although the list of its namespace did not contain it; the next round compares again"
    ]
    assert not found.is_in_step
    assert session.state().made_here == ("orders",)


def test_i5_an_active_member_that_gives_no_answer_lets_nothing_be_deleted(
    session: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = PairState(pair="contoso", active="ewr", standby="jfk", made={"jfk": ("gone",)})
    session.file.save(state)
    members["jfk"].statuses["gone"] = "Active"
    compared = session.keeper.compare(state)
    members["ewr"].is_away = True
    monkeypatch.setattr(members["jfk"], "make", lambda step, **options: pytest.fail(str(step)))
    with pytest.raises(ConnectionLostError):
        session.keeper.make(state, compared)


@pytest.fixture
def killed_in_deletion(
    session: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch
) -> PairSession:
    """As after a kill of the keeper, which had stopped an entity of the standby member to count its messages."""
    session.file.save(PairState(pair="contoso", active="ewr", standby="jfk", made={"jfk": ("gone",)}))
    members["jfk"].statuses["gone"] = "ReceiveDisabled"

    def make(step: Step, *, with_messages: bool = False) -> None:
        members["jfk"].statuses["gone"] = "SendDisabled"
        raise Hanging("jfk")

    with monkeypatch.context() as patched:
        patched.setattr(members["jfk"], "make", make)
        with pytest.raises(Hanging):
            session.sync()
    return session


def test_an_entity_that_a_killed_deletion_has_stopped_gets_its_status_back(
    killed_in_deletion: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(step: Step, *, with_messages: bool = False) -> None:
        members["jfk"].statuses["gone"] = step.entity.status
        raise HoldsMessagesError("jfk/gone", 1)

    monkeypatch.setattr(members["jfk"], "make", make)
    killed_in_deletion.sync()
    assert members["jfk"].statuses["gone"] == "ReceiveDisabled"
    assert not killed_in_deletion.state().stopped


def test_an_entity_that_a_killed_deletion_has_stopped_is_opened_by_a_forced_fail_over(
    killed_in_deletion: PairSession, members: dict[str, FakeMember]
) -> None:
    members["ewr"].is_away = True
    killed_in_deletion.force()
    with contextlib.suppress(ConnectionLostError):
        killed_in_deletion.finish(0.0)
    found = killed_in_deletion.state()
    assert (found.active, found.phase, found.stopped) == ("jfk", Phase.STEADY, {})
    assert members["jfk"].statuses == {"orders": "Active", "gone": "ReceiveDisabled"}


def test_an_entity_that_a_killed_deletion_has_stopped_and_that_stays_gets_its_status_back(
    killed_in_deletion: PairSession, members: dict[str, FakeMember]
) -> None:
    """Deleted with the operator's consent, which the next round does not have."""
    killed_in_deletion.file.save(replace(killed_in_deletion.state(), made={}))
    killed_in_deletion.sync()
    assert members["jfk"].statuses["gone"] == "ReceiveDisabled"
    assert not killed_in_deletion.state().stopped


def test_an_entity_that_a_killed_deletion_has_stopped_can_be_used_once_the_pair_is_broken(
    killed_in_deletion: PairSession, members: dict[str, FakeMember]
) -> None:
    killed_in_deletion.break_up()
    assert members["jfk"].statuses == {"orders": "Active", "gone": "ReceiveDisabled"}


def test_an_entity_that_a_killed_deletion_has_stopped_gets_its_status_back_where_its_name_is_excluded_then(
    killed_in_deletion: PairSession, members: dict[str, FakeMember]
) -> None:
    vars(killed_in_deletion)["keeper"] = Keeper(members, killed_in_deletion.file.save, ("go*",))  # type: ignore[arg-type]
    killed_in_deletion.sync()
    assert members["jfk"].statuses["gone"] == "ReceiveDisabled"
    assert not killed_in_deletion.state().stopped


def test_an_entity_that_a_killed_deletion_has_stopped_gets_its_status_back_where_its_member_is_active_then(
    killed_in_deletion: PairSession, members: dict[str, FakeMember]
) -> None:
    """By a fail-over of another process, which knows nothing of what was stopped."""
    forced = PairState(pair="contoso", active="ewr", standby="jfk").begin_forced(1.0)
    members["jfk"].marker = members["ewr"].marker = forced.marker
    members["ewr"].statuses["gone"] = "Active"
    killed_in_deletion.finish()
    found = killed_in_deletion.state()
    assert (found.active, found.stopped) == ("jfk", {})
    assert members["jfk"].statuses == {"orders": "Active", "gone": "ReceiveDisabled"}
    assert members["ewr"].statuses == {"orders": "Disabled", "gone": "Disabled"}


def test_an_entity_that_refuses_its_former_status_keeps_the_rest_in_step(
    killed_in_deletion: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_deletion.file.save(replace(killed_in_deletion.state(), made={}))
    members["ewr"].statuses["fresh"] = "Active"

    def refuse(entity: Description, status: str) -> None:
        raise AdministrationError("jfk", "refused with 400")

    with monkeypatch.context() as patched:
        patched.setattr(members["jfk"], "set_status", refuse)
        killed_in_deletion.sync()
    assert members["jfk"].statuses["fresh"] == "Active"
    killed_in_deletion.sync()
    assert members["jfk"].statuses["gone"] == "ReceiveDisabled"


def test_what_was_stopped_at_a_member_that_is_fenced_now_is_not_opened(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    fenced_standby(session, members)
    members["jfk"].statuses["gone"] = members["ewr"].statuses["gone"] = "SendDisabled"
    state = session.state().with_stopped("jfk", {"gone": "Active"})
    assert session.keeper.restore(state) == state
    assert members["jfk"].statuses["gone"] == "SendDisabled"


def test_a_forced_fail_over_waits_for_no_planned_one(
    session: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for an hour for receivers to empty a member, and has the lock."""
    fenced_standby(session, members)
    forced = []

    def counts(entities: Iterable[Description]) -> Mapping[str, Counts]:
        if not forced:
            forced.append(session.force())
        return {"orders": Counts(active=1)}

    monkeypatch.setattr(members["ewr"], "counts", counts)
    monkeypatch.setattr(failover.time, "sleep", lambda seconds: None)
    with pytest.raises(SupersededError):
        session.fail_over(consume_ms=3_600_000, leaves=False)
    assert session.finish().active == "jfk"


def test_an_operator_may_leave_messages_behind_in_a_fail_over_that_is_carried_on(
    session: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = PairState(pair="contoso", active="ewr", standby="jfk")
    session.file.save(state.begin(1.0, statuses={}, consume_ms=0, leaves=False).advanced(1.0))
    monkeypatch.setattr(members["ewr"], "counts", lambda entities: {"orders": Counts(active=1)})
    monkeypatch.setattr(session, "_move", lambda state, entity: Moved(0, "full"))
    found, work = session.fail_over(consume_ms=0, leaves=True)
    assert (found.active, work.left) == ("jfk", {"orders": 1})
    assert session.waiting_at("ewr") == {"orders": 1}


def test_a_pair_whose_other_member_is_lost_for_ever_can_be_ended(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    fenced_standby(session, members)
    members["jfk"].is_away = True
    with pytest.raises(ConnectionLostError):
        session.break_up()
    members["ewr"].marker = session.state().marker
    assert session.break_up(is_forced=True)[1] == {"jfk": str(ConnectionLostError("jfk"))}
    assert members["ewr"].marker == {}
    with pytest.raises(NotPairedError):
        session.state()


def test_what_cannot_be_replaced_is_not_reported_as_created(
    session: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds messages and stays; the namespace would say of the creation that it is there already, which is taken as done."""
    state = PairState(pair="contoso", active="ewr", standby="jfk", made={"jfk": ("orders",)})
    session.file.save(state)
    orders, other = (Description(kind="queue", names=(name,)) for name in ("orders", "other"))
    drift = Drift(
        groups=(
            (Step(action="delete", before=orders),),
            (Step(action="create", after=orders), Step(action="create", after=other)),
        )
    )

    def make(step: Step, *, with_messages: bool = False) -> None:
        if step.action == "delete":
            raise HoldsMessagesError(step.entity.path, 3)

    monkeypatch.setattr(members["jfk"], "make", make)
    after, found = session.keeper.make(state, Comparison(drift, {}, frozenset({("orders",)})))
    assert [str(step) for step in found.done] == ["+ queue other"]
    assert [str(step) for step, _ in found.failed] == ["- queue orders"]
    assert after.made_here == ("orders", "other")


def test_a_pair_that_is_created_again_while_it_fails_over_elsewhere_leaves_that_alone(
    session: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine, or where the state folder was lost; it can be forced then."""
    monkeypatch.setattr(session.keeper, "check_distinct", lambda pair: None)
    at_jfk = PairState(pair="contoso", active="jfk", standby="ewr", epoch=2)
    begun = at_jfk.begin(1.0, statuses={}, consume_ms=0, leaves=False)
    for member in members.values():
        member.marker = begun.marker
    made = session.create()
    assert (made.active, made.epoch, made.phase) == ("jfk", 2, Phase.STEADY)
    assert [member.marker for member in members.values()] == [begun.marker] * 2
    with pytest.raises(SupersededError):
        session.sync()
    assert session.force().epoch == 3


def test_a_fail_over_after_one_that_was_killed_while_it_was_undone_is_made(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    """Its exit code says that the other member is active."""
    members["ewr"].statuses["orders"] = "SendDisabled"
    begun = PairState(pair="contoso", active="ewr", standby="jfk").begin(1.0, statuses={}, consume_ms=0, leaves=False)
    reported(members, begun)
    session.file.save(replace(begun.aborting(1.0), moved=3, left={"orders": 1}))
    state, work = session.fail_over(consume_ms=0, leaves=False)
    assert (state.active, state.epoch, state.phase) == ("jfk", 3, Phase.STEADY)
    assert (work.moved, work.left) == (0, {})
    assert {alias: each.statuses["orders"] for alias, each in members.items()} == {"ewr": "Disabled", "jfk": "Active"}


def test_a_forced_fail_over_to_a_member_that_is_lost_too_can_be_given_up(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    """The alias leads to no member until the new member is open."""
    fenced_standby(session, members)
    members["ewr"].statuses["off"] = "Disabled"
    members["jfk"].is_away = True
    session.force()
    with pytest.raises(ConnectionLostError):
        session.finish()
    assert session.state().leads_to == ""
    session.abort()
    found = session.state()
    assert (found.leads_to, found.epoch, found.phase) == ("ewr", 3, Phase.STEADY)
    assert members["ewr"].statuses == {"orders": "Active", "off": "Disabled"}
    members["jfk"].is_away = False
    members["jfk"].statuses["orders"] = "Active"  # it was opened in part
    PairRun(session)._round()
    assert members["jfk"].statuses["orders"] == "Disabled"
    assert members["jfk"].marker == members["ewr"].marker == session.state().marker


def test_a_forced_fail_over_beside_a_planned_one_opens_again_where_it_is_given_up(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    fenced_standby(session, members)
    begun = session.state().begin(1.0, statuses={"off": "Disabled"}, consume_ms=0, leaves=False)
    session.file.save(begun.advanced(1.0).advanced(1.0).advanced(1.0))
    members["ewr"].statuses = {"orders": "Disabled", "off": "Disabled"}
    members["jfk"].is_away = True
    for _ in range(2):  # repeated, it is still beside the planned one
        session.force()
    session.abort()
    assert (session.state().leads_to, session.state().phase) == ("ewr", Phase.STEADY)
    assert members["ewr"].statuses == {"orders": "Active", "off": "Disabled"}


def test_a_run_that_is_stopped_does_not_wait_for_the_receivers_of_a_fail_over_that_it_carries_on(
    session: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = PairState(pair="contoso", active="ewr", standby="jfk")
    begun = state.begin(1.0, statuses={}, consume_ms=3_600_000, leaves=False).advanced(1.0)
    session.file.save(begun)
    members["ewr"].backlog = Counts(active=1)
    run = PairRun(session)
    monkeypatch.setattr(failover.time, "sleep", lambda seconds: run._stop.set())
    with pytest.raises(StoppingError):
        run._round()
    assert session.state() == begun


@pytest.mark.parametrize("is_forced", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_what_is_excluded_since_a_member_was_fenced_is_opened_with_it(
    session: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch, is_forced: bool, ends: bool
) -> None:
    """It is closed, and nothing would open it."""
    for each in members.values():
        each.statuses.update(late="Active", own="Active")
    members["ewr"].statuses["own"] = "SendDisabled"
    own = replace(session.pair, exclude=("own",))
    session.pair = own
    vars(session)["keeper"] = Keeper(members, session.file.keep, own.exclude)  # type: ignore[arg-type]
    session.file.save(PairState(pair="contoso", active="ewr", standby="jfk"))
    if is_forced:
        session.force()
        session.finish()
    else:
        session.fail_over(consume_ms=0, leaves=False)
    assert members["ewr"].statuses == {"orders": "Disabled", "late": "Disabled", "own": "SendDisabled"}
    session.pair = replace(own, exclude=("own", "late"))
    vars(session)["keeper"] = Keeper(members, session.file.keep, session.pair.exclude)  # type: ignore[arg-type]
    session.file.keep(PairState.from_dict(session.state().to_dict()))
    if ends:
        session.break_up()
    else:
        session.fail_over(consume_ms=0, leaves=False)
    assert members["ewr"].statuses == {"orders": "Active", "late": "Active", "own": "SendDisabled"}


def test_an_entity_that_cannot_be_closed_is_reported_in_each_round_and_keeps_the_rest_in_step(
    session: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    members["ewr"].statuses["odd"] = members["jfk"].statuses["odd"] = "Active"
    session.file.save(PairState(pair="contoso", active="ewr", standby="jfk"))
    session.force()
    set_status, refusal = members["ewr"].set_status, AdministrationError("ewr", "refused with 400")

    def refuse(entity: Description, status: str) -> None:
        if entity.path == "odd":
            raise refusal
        set_status(entity, status)

    def make(step: Step, *, with_messages: bool = False) -> None:
        refuse(step.entity, step.entity.status)

    monkeypatch.setattr(members["ewr"], "set_status", refuse)
    monkeypatch.setattr(members["ewr"], "make", make)
    assert session.finish().fence_of("ewr") is Fence.CLOSED
    assert members["ewr"].statuses == {"orders": "Disabled", "odd": "Active"}
    members["jfk"].statuses["fresh"] = "Active"
    with pytest.raises(IsthmusError, match=r"odd.*refused with 400"):
        PairRun(session)._round()
    assert members["ewr"].statuses["fresh"] == "Disabled"


@pytest.mark.parametrize("verb", ["sync", "failover", "run"])
def test_a_connection_that_leads_to_the_other_member_closes_nothing(
    session: PairSession, members: dict[str, FakeMember], verb: str
) -> None:
    """It was changed since the pair was created. The fence of one member would close the other one, which is the same."""
    session.file.save(PairState(pair="contoso", active="ewr", standby="jfk"))
    members["jfk"].named = "ewr"
    verbs = {
        "sync": session.sync,
        "failover": lambda: session.fail_over(consume_ms=0, leaves=False),
        "run": PairRun(session)._round,
    }
    with pytest.raises(SameNamespaceError):
        verbs[verb]()
    assert session.state().phase is Phase.STEADY
    assert [each.statuses for each in members.values()] == [{"orders": "Active"}] * 2


def test_two_connections_to_one_host_are_no_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EWR", "JFK"):
        text = f"Endpoint=sb://contoso.example/;SharedAccessKeyName={name};SharedAccessKey=a2V5"
        monkeypatch.setenv(f"ABSENT_{name}", text)
    (tmp_path / "isthmus.yaml").write_text(FILE)
    federation = load(str(tmp_path / "isthmus.yaml"))
    with PairSession(federation, federation.pairs["contoso"], tmp_path) as made, pytest.raises(SameNamespaceError):
        assert made.members


def test_what_was_made_under_an_alias_is_not_deleted_in_another_namespace(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    """The connection of the standby member was changed: what is there under the same name belongs to others."""
    state = PairState(pair="contoso", active="ewr", standby="jfk", is_told=True, made={"jfk": ("legacy", "orders")})
    session.file.save(state)
    reported(members, state)
    members["jfk"].statuses["legacy"] = "Active"
    assert [step.action for step in session.keeper.compare(session.state()).drift.steps] == ["delete"]
    members["jfk"].marker = {}
    _, found = session.sync()
    assert [each.path for each in found.drift.foreign] == ["legacy"]
    assert not found.done
    assert members["jfk"].statuses["legacy"] == "Active"
    assert members["jfk"].marker == session.state().marker
    assert session.state().made_keys == frozenset()


def test_a_standby_member_that_gives_no_answer_keeps_what_was_made(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    state = PairState(pair="contoso", active="ewr", standby="jfk", is_told=True, made={"jfk": ("orders",)})
    session.file.save(state)
    reported(members, state)
    members["jfk"].is_away = True
    assert session.keeper.follow(state) is state
