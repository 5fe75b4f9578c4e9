from __future__ import annotations

import socket
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.servicebus import exceptions
from azure.servicebus._pyamqp.error import AMQPConnectionError, ErrorCondition, MessageSendFailed, TokenAuthFailure
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import ServiceBusError

from isthmus.client.failure import Failure, classify
from isthmus.errors import InvalidArgumentError, ServerBusyError


def made_by_sdk(inner: Exception) -> ServiceBusError:
    """The error that the SDK makes of one of its protocol's."""
    import logging

    quiet = logging.getLogger("quiet")
    quiet.disabled = True
    return PyamqpTransport.create_servicebus_exception(quiet, inner)


CHAIN = """DefaultAzureCredential failed to retrieve a token from the included credentials.
Attempted credentials:
\tEnvironmentCredential: Authentication failed: connection refused"""


def without_token(cause: Exception | None, status: int | None = None) -> ClientAuthenticationError:
    """The error of a credential; azure-identity makes it of any error."""
    error = ClientAuthenticationError("Authentication failed")
    error.status_code, error.__cause__ = status, cause
    return error


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (made_by_sdk(AMQPConnectionError(ErrorCondition.SocketError)), Failure.GONE),
        (made_by_sdk(AMQPConnectionError(ErrorCondition.NotFound)), Failure.GONE),
        (made_by_sdk(TokenAuthFailure(401, "Unauthorized")), Failure.FORBIDDEN),
        (made_by_sdk(MessageSendFailed(ErrorCondition.NotAllowed)), Failure.REFUSED),
        (made_by_sdk(MessageSendFailed(ErrorCondition.LinkMessageSizeExceeded)), Failure.REFUSED),
        (made_by_sdk(MessageSendFailed(ErrorCondition.ResourceLimitExceeded)), Failure.FULL),
        (made_by_sdk(MessageSendFailed(ErrorCondition.InternalError)), Failure.GONE),
        (made_by_sdk(MessageSendFailed(ErrorCondition.NotFound)), Failure.MISSING),
        (made_by_sdk(MessageSendFailed(b"com.microsoft:server-busy")), Failure.BUSY),
        (made_by_sdk(MessageSendFailed(b"com.microsoft:timeout")), Failure.UNKNOWN),
        (made_by_sdk(MessageSendFailed(b"com.microsoft:entity-disabled")), Failure.DISABLED),
        (made_by_sdk(MessageSendFailed(b"vendor:something-new")), Failure.UNKNOWN),
        (made_by_sdk(socket.gaierror(-2, "Name or service not known")), Failure.GONE),
        (made_by_sdk(ClientAuthenticationError("no identity")), Failure.FORBIDDEN),
        (made_by_sdk(without_token(None, status=401)), Failure.FORBIDDEN),
        (made_by_sdk(without_token(None, status=503)), Failure.GONE),
        (made_by_sdk(without_token(None, status=429)), Failure.GONE),
        (made_by_sdk(without_token(ServiceRequestError("the token service is away"))), Failure.GONE),
        (made_by_sdk(without_token(without_token(ServiceRequestError("it is away")))), Failure.GONE),
        (made_by_sdk(without_token(ValueError("no such tenant"))), Failure.FORBIDDEN),
        (made_by_sdk(ClientAuthenticationError(CHAIN)), Failure.GONE),
        (made_by_sdk(ServiceRequestError("the token service is away")), Failure.GONE),
        (made_by_sdk(ValueError("not a message")), Failure.MISUSE),
        (exceptions.OperationTimeoutError(), Failure.UNKNOWN),
        (exceptions.MessageSizeExceededError(), Failure.REFUSED),
        (exceptions.MessageLockLostError(), Failure.LOCK_LOST),
        (exceptions.MessageAlreadySettled(action="complete"), Failure.LOCK_LOST),
        (exceptions.SessionCannotBeLockedError(), Failure.BUSY),
        (TimeoutError(), Failure.UNKNOWN),
        (ConnectionResetError(), Failure.GONE),
        (TypeError("42"), Failure.MISUSE),
        (ServiceBusError("who knows"), Failure.UNKNOWN),
        (RuntimeError("The service did not confirm the settlement."), Failure.UNKNOWN),
        (ServerBusyError("later"), Failure.UNKNOWN),
        (InvalidArgumentError("no"), Failure.MISUSE),
    ],
)
def test_an_error_is_known_by_its_class_and_condition(error: BaseException, failure: Failure) -> None:
    assert classify(error) is failure


def test_a_lost_settlement_is_known_by_the_error_below_it() -> None:
    error = RuntimeError("Connection lost during settle operation.")
    error.__cause__ = AMQPConnectionError(ErrorCondition.SocketError)
    assert classify(error) is Failure.GONE


def test_every_error_of_the_sdk_is_one_of_a_known_kind() -> None:
    """A new class of a later version of the SDK is to be looked at, not guessed at."""
    known = {
        "AutoLockRenewFailed",
        "AutoLockRenewTimeout",
        "MessagingEntityAlreadyExistsError",
        "ServiceBusError",
    }
    for name, kind in vars(exceptions).items():
        if isinstance(kind, type) and issubclass(kind, ServiceBusError) and name not in known:
            made: Any = kind(message="x") if name != "ServiceBusError" else kind("x")
            expected_unknown = name == "OperationTimeoutError"
            assert (classify(made) is Failure.UNKNOWN) is expected_unknown, name


def test_only_what_was_certainly_not_sent_is_definite() -> None:
    """I1."""
    assert not Failure.UNKNOWN.is_definite(link_was_open=False)
    assert not Failure.GONE.is_definite(link_was_open=True)
    assert Failure.GONE.is_definite(link_was_open=False)
    assert Failure.REFUSED.is_definite(link_was_open=True)
