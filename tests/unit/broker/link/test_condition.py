import pytest

from isthmus import errors
from isthmus.broker.link.condition import INTERNAL_TEXT, amqp_error, refusal


@pytest.mark.parametrize(
    ("error", "status", "condition"),
    [
        (errors.EntityNotFoundError("q"), 404, "amqp:not-found"),
        (errors.UnauthorizedError("no"), 401, "amqp:unauthorized-access"),
        (errors.LockLostError("gone"), 410, "com.microsoft:message-lock-lost"),
        (errors.MessageTooLargeError(2, 1), 400, "amqp:link:message-size-exceeded"),
        (errors.QuotaExceededError("full"), 403, "amqp:resource-limit-exceeded"),
        (errors.EntityDisabledError("q", "Disabled"), 403, "com.microsoft:entity-disabled"),
        (errors.NotAllowedError("no"), 400, "amqp:not-allowed"),
        (errors.ServerBusyError("busy"), 503, "com.microsoft:server-busy"),
        (errors.EntityExistsError("q"), 409, "com.microsoft:entity-already-exists"),
        (errors.MessageNotFoundError("none"), 404, "com.microsoft:message-not-found"),
    ],
)
def test_each_error_has_the_services_condition(error, status, condition):
    reported = refusal(error)
    assert (reported.status, reported.condition) == (status, condition)
    assert amqp_error(error).condition == condition


def test_a_missing_entity_reads_as_clients_expect():
    assert refusal(errors.EntityNotFoundError("q")).text.startswith("The messaging entity 'q' could not be found")


@pytest.mark.parametrize("error", [RuntimeError("/secret/path"), errors.StoreError("IO error: /secret/path")])
def test_nothing_of_the_inside_is_reported_i1(error):
    reported = refusal(error)
    assert reported.condition == "amqp:internal-error"
    assert "secret" not in reported.text
    if isinstance(error, RuntimeError):
        assert reported.text == INTERNAL_TEXT
