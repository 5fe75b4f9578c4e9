"""One connection that many routes share.

What it is: the client of a namespace or broker, from dialing until it is lost or no longer used, and the ends that use it. What
it is not: reconnecting; an end that is opened again gets another connection.

Invariants:
    I1. When the connection is lost, or cannot be made, each of its ends is notified once.
    I2. No more AMQP sessions are used than the remote container allows, and `SESSIONS`.
    I3. A token for a path is renewed as long as an end uses it, and no longer.
    I4. A connection adopts a replaced secret: as long as an end uses it, no other connection is made.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

from isthmus.connectors.servicebus.connect import endpoint_of
from isthmus.connectors.servicebus.option import SinkOptions, SourceOptions
from isthmus.connectors.servicebus.port.credential import BackgroundCredential, RereadCredential
from isthmus.connectors.servicebus.port.dialer import OPEN_SECONDS
from isthmus.errors import ConnectionLostError, IsthmusError
from isthmus.transport import Client, Credential, Endpoint, IdentityCredential

__all__ = ["SESSIONS", "Remote", "ConnectionKey", "SharedConnection", "User", "dial", "remote_of"]


_log = logging.getLogger(__name__)

# A namespace takes about 5,000 sessions on a connection, and ends that share one wait for each other.
SESSIONS = 1000


class ConnectionKey(NamedTuple):
    """The key of a connection: how its options reach a namespace."""

    connection: str
    host: str
    identity: str
    ca_file: str
    transport_type: str


@dataclass(frozen=True, slots=True)
class Remote:
    """The remote namespace or broker of an end.

    Attributes:
        connection_key: ends with an equal key share a connection.
        dial: opens a client; blocks, and raises IsthmusError.
    """

    connection_key: Hashable
    dial: Callable[[], Client]


def remote_of(options: SourceOptions | SinkOptions) -> Remote:
    """The namespace of the options."""
    connection_key = ConnectionKey(
        options.connection, options.host, options.identity, options.ca_file, options.transport_type
    )
    return Remote(connection_key, partial(dial, options))


def dial(options: SourceOptions | SinkOptions) -> Client:
    """Opens a client; blocks.

    Raises:
        IsthmusError: the reference cannot be resolved, or no connection could be made.
    """
    endpoint = endpoint_of(options)
    if isinstance(endpoint.credential, IdentityCredential):
        credential = BackgroundCredential(endpoint.credential)
        credential.fetch()
        endpoint = replace(endpoint, credential=credential)
    else:
        endpoint = replace(
            endpoint, credential=RereadCredential(endpoint.credential, partial(_reread, options, endpoint))
        )
    client = Client(endpoint, name=f"isthmus-bridge-{os.getpid()}", shared=True)
    return client.open(OPEN_SECONDS)


def _reread(options: SourceOptions | SinkOptions, endpoint: Endpoint) -> Credential | None:
    """A credential with the current secret; None: the secret is of another namespace, whose key must not be sent to this one."""
    now = endpoint_of(options)
    return now.credential if now.authority == endpoint.authority else None


class User(Protocol):
    """An end, as its connection sees it."""

    path: str
    sessions: int

    def on_connected(self, client: Client) -> None:
        """The connection is open."""

    def on_disconnected(self, error: IsthmusError) -> None:
        """The connection is lost, or could not be made."""


class SharedConnection:
    """A connection and its users.

    Attributes:
        connection_key: its key.
        client: None until it is open.
        error: why it is unusable.
        sessions: AMQP sessions that its users may begin.
        idle_since: when the last user left, in monotonic seconds; 0 while it has users.
        close_by: when it is closed without waiting longer for the remote side; 0 while it is not being closed.
    """

    def __init__(self, connection_key: Hashable) -> None:
        self.connection_key = connection_key
        self.client: Client | None = None
        self.error: IsthmusError | None = None
        self.sessions = 0
        self.idle_since = 0.0
        self.close_by = 0.0
        self._users: dict[User, str] = {}  # and the path with which each is counted
        self._paths: Counter[str] = Counter()

    def takes(self, sessions: int) -> bool:
        """Whether a new user with so many sessions may join."""
        return self.error is None and not self.close_by and self.sessions + sessions <= self._room()

    def _room(self) -> int:
        # One session is for tokens; channels count from 0.
        return SESSIONS if self.client is None else min(SESSIONS, self.client.connection.channel_max)

    @property
    def is_used(self) -> bool:
        """Whether it has users."""
        return bool(self._users)

    def join(self, user: User) -> None:
        """Adds a user, and notifies it at once where the connection is open."""
        self._count(user)
        self.sessions += user.sessions
        self.idle_since = 0.0
        if self.client is not None:
            self._notify(user, self.client)

    def _count(self, user: User) -> None:
        self._users[user] = user.path
        self._paths[user.path] += 1

    def _notify(self, user: User, client: Client) -> None:
        user.on_connected(client)
        counted = self._users.get(user, user.path)
        if counted != user.path:  # an IoT hub reports its path only when it is connected
            self._paths[counted] -= 1
            self._count(user)

    def leave(self, user: User, now: float) -> None:
        """Removes a user. No error if it has left."""
        if user not in self._users:
            return
        path = self._users.pop(user)
        self.sessions -= user.sessions
        self._paths[path] -= 1
        if not self._paths[path]:
            del self._paths[path]
            if self.client is not None:
                self.client.withdraw(path)
        if not self._users:
            self.idle_since = now

    def adopt(self, client: Client) -> None:
        """The connection is open."""
        self.client = client
        for user in list(self._users):
            if self.sessions > self._room():
                self.leave(user, 0.0)
                user.on_disconnected(
                    ConnectionLostError(
                        f"'{user.path}': the namespace accepts no more links on this connection; try again"
                    )
                )
            else:
                self._notify(user, client)

    def lost(self, error: IsthmusError) -> None:
        """The connection is lost, or could not be made."""
        self.error = self.error or error
        if self.client is not None:
            try:
                self.client.abandon()
            except Exception:  # noqa: BLE001 - after any error of a link, the users must be notified
                _log.exception("an error while a lost connection is closed")
        users = list(self._users)
        self._users.clear()
        for user in users:
            user.on_disconnected(self.error)
