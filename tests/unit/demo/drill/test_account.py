"""What a drill counts, by what happened and when."""

from __future__ import annotations

from isthmus.demo.drill.account import DrillAccount


def take(account: DrillAccount, consumer: str, message_id: str, now: float) -> None:
    if account.is_new(consumer, message_id):
        account.handled(consumer, message_id, now)


def test_what_only_the_lost_member_has_is_late_and_not_lost() -> None:
    account = DrillAccount(["app"])
    for number, at in enumerate((1.0, 2.0, 3.0)):
        account.sent(f"m{number}", "ewr", at)
    take(account, "app", "m0", 1.5)
    account.lost("ewr", ["app"], 4.0)
    take(account, "app", "m1", 4.5)  # a copy at the other member
    account.sent("m3", "jfk", 6.0)
    take(account, "app", "m3", 6.25)
    assert account.returns() == 1
    take(account, "app", "m2", 20.0)
    take(account, "app", "m1", 20.0)  # comes again
    report = account.report()
    assert (report.rpo_messages, report.rto_seconds) == (1, 2.25)
    assert (report.sent, report.handled, report.handled_twice, report.suppressed, report.lost) == (4, 4, 0, 1, 0)


def test_i1_what_is_never_handled_is_lost() -> None:
    account = DrillAccount(["app"])
    account.sent("a", "ewr", 1.0)
    account.lost("ewr", ["app"], 2.0)
    assert account.returns() == 1
    assert (account.report().lost, account.report().rto_seconds) == (1, None)
    assert (account.unhandled(), account.unhandled("jfk")) == (1, 0)


def test_i2_a_message_that_is_handled_twice_is_counted() -> None:
    account = DrillAccount(["app"])
    account.sent("a", "ewr", 1.0)
    account.handled("app", "a", 2.0)
    account.handled("app", "a", 3.0)
    assert account.report().handled_twice == 1


def test_i3_every_consumer_should_handle_every_message() -> None:
    account = DrillAccount(["ewr", "jfk"])
    account.sent("a", "ewr", 1.0)
    take(account, "ewr", "a", 1.1)
    account.lost("ewr", ["jfk"], 2.0)
    assert account.returns() == 1
    assert account.report().lost == 1
    take(account, "jfk", "a", 3.0)
    assert (account.report().handled, account.report().lost, account.report().handled_twice) == (1, 0, 0)


def test_recovery_is_what_was_published_after_the_loss_and_where_life_continues() -> None:
    account = DrillAccount(["ewr", "jfk"])
    account.sent("old", "jfk", 1.0)
    account.lost("ewr", ["jfk"], 2.0)
    take(account, "jfk", "old", 3.0)
    account.sent("new", "jfk", 3.5)
    take(account, "ewr", "new", 4.0)
    take(account, "jfk", "new", 5.0)
    assert account.report().rto_seconds == 3.0


def test_what_is_handled_while_an_operator_makes_the_member_unreachable_is_no_recovery() -> None:
    """The loss is reported after it has happened, and counts from the last that the member has acknowledged."""
    account = DrillAccount(["app"])
    asked_at = 1.0
    for at in (0.5, 2.0, 30.0):
        account.sent(f"before {at}", "ewr", at)
        take(account, "app", f"before {at}", at + 0.1)
    assert account.last_sent("ewr") == 30.0
    account.sent("after", "jfk", 31.0)
    take(account, "app", "after", 34.0)  # before the operator reports it
    account.lost("ewr", ["app"], max(asked_at, account.last_sent("ewr")))
    account.sent("later", "jfk", 36.0)
    take(account, "app", "later", 36.1)
    assert account.report().rto_seconds == 4.0


def test_what_was_handled_before_its_acknowledgement_came_is_no_recovery() -> None:
    account = DrillAccount(["app"])
    account.lost("ewr", ["app"], 2.0)
    take(account, "app", "never acknowledged", 2.1)
    account.sent("new", "jfk", 5.0)
    take(account, "app", "new", 5.5)
    take(account, "app", "acknowledged later", 6.0)
    account.sent("acknowledged later", "jfk", 6.1)
    assert account.report().rto_seconds == 3.5
