"""The refusals that a target's answers mean."""

import pytest

from isthmus.bridge.refusal import RefusalKind
from isthmus.connectors.servicebus.refusal import refusal_of
from isthmus.errors import ConnectionLostError, IsthmusError, OutcomeUnknownError, UnsupportedError
from isthmus.transport.error import error_from


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("amqp:not-found", RefusalKind.FATAL),
        ("amqp:unauthorized-access", RefusalKind.FATAL),
        ("com.microsoft:server-busy", RefusalKind.BLOCKED),
        ("amqp:resource-limit-exceeded", RefusalKind.BLOCKED),
        ("com.microsoft:entity-disabled", RefusalKind.BLOCKED),
        ("com.microsoft:timeout", RefusalKind.BLOCKED),
        ("com.microsoft:argument-error", RefusalKind.MESSAGE),
        ("amqp:link:message-size-exceeded", RefusalKind.MESSAGE),
        ("amqp:decode-error", RefusalKind.MESSAGE),
        ("amqp:not-allowed", RefusalKind.UNCLEAR),
        ("amqp:internal-error", RefusalKind.UNCLEAR),
        ("contoso:anything", RefusalKind.UNCLEAR),
        ("", RefusalKind.UNCLEAR),
    ],
)
def test_only_what_is_about_the_message_whatever_the_time_is_its_fault_i2(condition: str, kind: RefusalKind) -> None:
    refusal = refusal_of(error_from(condition, "text", path="orders"))
    assert refusal.kind is kind
    assert condition in str(refusal) or kind in (RefusalKind.FATAL, RefusalKind.BLOCKED, RefusalKind.MESSAGE)
    too_large = condition == "amqp:link:message-size-exceeded"
    assert refusal.reason == ("MessageTooLarge" if too_large else "RefusedByTarget")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OutcomeUnknownError("no outcome"), RefusalKind.UNKNOWN),
        (ConnectionLostError("gone"), RefusalKind.BLOCKED),
        (UnsupportedError("no"), RefusalKind.UNCLEAR),
    ],
)
def test_other_errors_have_a_meaning_too(error: IsthmusError, kind: RefusalKind) -> None:
    assert refusal_of(error).kind is kind
