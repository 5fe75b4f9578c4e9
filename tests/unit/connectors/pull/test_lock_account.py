"""isthmus.connectors.pull.lock_account: which message needs which request."""

from __future__ import annotations

from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.pull.lock_account import Job, Locks
from isthmus.connectors.pull.puller import Lease, Pulled


def given(name: str, receipt: str = "r", deliveries: int = 1, unreadable: str = "") -> Pulled:
    return Pulled(Lease(name, receipt, 10.0), name.encode(), deliveries, 0, unreadable)


def settled(locks: Locks, name: str) -> None:
    job, locked_messages = locks.next_jobs(0.0, 10)
    assert (job, [locked.lease.name for locked in locked_messages]) == (Job.COMPLETE, [name])
    locks.done(job, locked_messages, [locked.lease.receipt for locked in locked_messages], [True])


def test_i1_one_request_at_a_time() -> None:
    locks = Locks(0)
    locks.arrive([given("a")], 0.0)
    (locked,) = locks.take(5)
    assert locks.next_jobs(4.9, 10) == (Job.NONE, [])
    job, locked_messages = locks.next_jobs(5.0, 10)
    assert (job, locked_messages) == (Job.RENEW, [locked])
    locks.settle(locked.position, locked.position)
    assert locks.next_jobs(5.0, 10) == (Job.NONE, [])
    locks.renewed(locked_messages, [Lease("a", "r2", 10.0)], 5.0)
    settled(locks, "a")
    assert len(locks) == 0
    assert not locks.has_jobs


def test_i2_what_comes_again_is_not_reported_again_and_settled_by_its_new_receipt() -> None:
    locks = Locks(0)
    assert locks.arrive([given("a")], 0.0) == 1
    (locked,) = locks.take(5)
    assert locks.arrive([given("a", "new")], 1.0) == 0
    locks.settle(locked.position, locked.position)
    job, locked_messages = locks.next_jobs(1.0, 1)
    assert locked_messages[0].lease.receipt == "new"
    # While it is deleted it is delivered again: the delete finds nothing, and is sent again.
    locks.arrive([given("a", "newer")], 1.0)
    locks.done(job, locked_messages, ["new"], [False])
    settled(locks, "a")
    assert len(locks) == 0


def test_what_was_given_back_and_comes_again_is_a_new_delivery() -> None:
    locks = Locks(0)
    locks.arrive([given("a")], 0.0)
    (locked,) = locks.take(5)
    first = locked.position
    locks.release(first, first)
    job, locked_messages = locks.next_jobs(0.0, 1)
    assert job is Job.RELEASE
    assert locks.arrive([given("a", "r2")], 0.0) == 1  # before the answer to the release
    (again,) = locks.take(5)
    assert again.position > first
    locks.settle(again.position, again.position)
    locks.done(job, locked_messages, ["r"], [True])
    settled(locks, "a")


def test_i3_what_was_lost_after_it_was_settled_is_forgotten() -> None:
    locks = Locks(0)
    locks.arrive([given("a")], 0.0)
    (locked,) = locks.take(5)
    locks.settle(locked.position, locked.position)
    job, locked_messages = locks.next_jobs(0.0, 1)
    locks.done(job, locked_messages, ["r"], [False])
    assert len(locks) == 0


def test_i4_what_failed_is_asked_for_again() -> None:
    locks = Locks(0)
    locks.arrive([given("a")], 0.0)
    (locked,) = locks.take(5)
    _, locked_messages = locks.next_jobs(6.0, 1)
    locks.failed(locked_messages, 6.0)
    assert locks.next_jobs(6.0, 1)[0] is Job.RENEW
    locks.failed(locked_messages, 6.0)
    locks.settle(locked.position, locked.position)
    _, locked_messages = locks.next_jobs(6.0, 1)
    locks.failed(locked_messages, 6.0)
    settled(locks, "a")


def test_completions_come_first_unless_a_lock_is_about_to_end() -> None:
    locks = Locks(0)
    locks.arrive([given("a"), given("b")], 0.0)
    first, _ = locks.take(5)
    locks.settle(first.position, first.position)
    job, locked_messages = locks.next_jobs(6.0, 1)
    assert job is Job.COMPLETE
    locks.failed(locked_messages, 6.0)
    assert locks.next_jobs(8.0, 1)[0] is Job.RENEW


def test_what_was_given_too_often_or_is_unreadable_is_set_aside() -> None:
    locks = Locks(3)
    assert (
        locks.arrive([given("a", deliveries=4), given("b", deliveries=3), given("c", unreadable="no base64")], 0.0) == 1
    )
    found = {}
    for _ in range(2):
        job, (locked,) = locks.next_jobs(0.0, 10)
        assert job is Job.SET_ASIDE
        assert locked.disposition is not None
        found[locked.lease.name] = locked.disposition.reason
    assert found == {"a": "MaxDeliveryCountExceeded", "c": "Unreadable"}


def test_at_the_end_everything_is_given_back_but_what_is_settled() -> None:
    locks = Locks(0)
    locks.arrive([given("a"), given("b"), given("c")], 0.0)
    first, second = locks.take(2)
    locks.settle(first.position, first.position)
    locks.settle(second.position, second.position, Disposition("dead-letter", "Bad"))
    locks.release_all()
    assert locks.next_jobs(0.0, 1)[0] is Job.COMPLETE
    assert locks.next_jobs(0.0, 1)[0] is Job.SET_ASIDE
    job, (locked,) = locks.next_jobs(0.0, 1)
    assert (job, locked.lease.name) == (Job.RELEASE, "c")


def test_i5_what_was_completed_by_a_receipt_of_no_use_is_completed_when_it_comes_again() -> None:
    """The answer to a renewal was lost: the system has another receipt since, and gives the message again when its lock ends."""
    locks = Locks(0)
    locks.arrive([given("a")], 0.0)
    (locked,) = locks.take(5)
    locks.settle(locked.position, locked.position)
    job, locked_messages = locks.next_jobs(0.0, 1)
    locks.done(job, locked_messages, ["r"], [False])
    assert locks.arrive([given("a", "r2", deliveries=2)], 60.0) == 0
    assert locks.take(5) == []
    job, locked_messages = locks.next_jobs(60.0, 5)
    assert (job, [locked.lease.receipt for locked in locked_messages]) == (Job.COMPLETE, ["r2"])
    locks.done(job, locked_messages, ["r2"], [True])
    assert locks.arrive([given("a", "r3", deliveries=3)], 70.0) == 1, "it is done with"


def test_i5_what_could_not_be_set_aside_is_reported_again() -> None:
    """It is not known whether it was put where it was to be put."""
    locks = Locks(0)
    locks.arrive([given("a")], 0.0)
    (locked,) = locks.take(5)
    locks.settle(locked.position, locked.position, Disposition("dead-letter", "Bad", "why"))
    job, locked_messages = locks.next_jobs(0.0, 1)
    locks.done(job, locked_messages, ["r"], [False])
    assert locks.arrive([given("a", "r2", deliveries=2)], 60.0) == 1


def test_i5_a_message_that_the_system_gives_for_the_first_time_is_another_one() -> None:
    locks = Locks(0)
    locks.arrive([given("a")], 0.0)
    (locked,) = locks.take(5)
    locks.settle(locked.position, locked.position)
    job, locked_messages = locks.next_jobs(0.0, 1)
    locks.done(job, locked_messages, ["r"], [False])
    assert locks.arrive([given("a", "r2", deliveries=1)], 60.0) == 1


def test_i5_what_was_given_back_is_reported_again() -> None:
    locks = Locks(0)
    locks.arrive([given("a")], 0.0)
    (locked,) = locks.take(5)
    locks.release(locked.position, locked.position)
    job, locked_messages = locks.next_jobs(0.0, 1)
    locks.done(job, locked_messages, ["r"], [False])
    assert locks.arrive([given("a", "r2", deliveries=2)], 60.0) == 1
