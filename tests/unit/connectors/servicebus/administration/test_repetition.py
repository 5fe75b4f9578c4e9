"""isthmus.connectors.servicebus.administration.repetition."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from azure.core.exceptions import AzureError, ResourceExistsError, ServiceRequestError, ServiceResponseError

from isthmus.connectors.servicebus.administration.repetition import LONGEST_WAIT_SECONDS, Repetition


def answer(status: int, **headers: str) -> SimpleNamespace:
    return SimpleNamespace(
        status_code=status, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


@pytest.mark.parametrize(("reported", "waited"), [("3600", str(LONGEST_WAIT_SECONDS)), ("3", "3")])
def test_i1_the_client_waits_for_no_longer_than_an_operator(reported: str, waited: str) -> None:
    response = answer(503, Retry_After=reported)
    Repetition().answered(response)
    assert response.headers["Retry-After"] == waited


@pytest.mark.parametrize(
    ("before", "is_done"),
    [
        (ServiceResponseError("the answer was lost"), True),
        (answer(502), True),
        (ServiceRequestError("nothing was sent"), False),
        (answer(503), False),
    ],
)
def test_i2_a_request_that_may_have_been_carried_out_is_done(
    before: AzureError | SimpleNamespace, is_done: bool
) -> None:
    repetition, request = Repetition(), object()
    repetition.begin(request)
    repetition.failed(before) if isinstance(before, AzureError) else repetition.answered(before)
    repetition.begin(request)
    repetition.answered(answer(409))
    raised = False
    try:
        with repetition.done_before(ResourceExistsError):
            raise ResourceExistsError("it exists")
    except ResourceExistsError:
        raised = True
    assert raised is not is_done


def test_i2_another_request_begins_anew() -> None:
    repetition = Repetition()
    repetition.begin(object())
    repetition.answered(answer(502))
    repetition.begin(object())
    with pytest.raises(ResourceExistsError), repetition.done_before(ResourceExistsError):
        raise ResourceExistsError("it exists")
