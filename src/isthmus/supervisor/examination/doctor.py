"""Tests everything that a run, a plan and an apply need of every namespace of a federation.

What it is: reachability, certificate, clock, tier, rights on each entity that the file names, and fill, tried without effect: links are
attached without credit, nothing is received, sent or made. What it is not: the check of the file (`isthmus.topology.linter`) or of
entities' settings (`isthmus plan`).

Invariants:
    I1. Every namespace is tested, whatever the results of others; all at the same time.
    I2. Nothing is changed at a namespace, and no message is taken.
    I3. No finding contains a secret.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial

from isthmus.connectors.administration import Administration, AdministrationError, open_administration
from isthmus.connectors.secret import scrub
from isthmus.connectors.servicebus.connect import endpoint_of, open_client
from isthmus.connectors.servicebus.connection_string import EMULATOR_HTTP_PORT
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.plain_host import ALLOWED_VARIABLE, may_be_plain
from isthmus.connectors.system import system_of
from isthmus.errors import EntityNotFoundError, IsthmusError, NotAllowedError, UnauthorizedError
from isthmus.replication.namespace_clients import namespace_options
from isthmus.supervisor.examination.examination import (
    Finding,
    Verdict,
    certificate_finding,
    clock_finding,
    fill_finding,
)
from isthmus.topology.check.plain_password import shown_to
from isthmus.topology.model import Federation, NamespaceRef
from isthmus.topology.rights import Rights, rights
from isthmus.transport import Client, Endpoint, Receiver, Sender

__all__ = ["examine"]

_CONNECT_SECONDS = 10.0
_ATTACH_SECONDS = 10.0
_ABSENT = "isthmus apply makes it"


def examine(federation: Federation) -> list[Finding]:
    """Test all namespaces; blocks for seconds if one does not answer.

    Args:
        federation: with absolute paths.
    """
    needed = {each.alias: each for each in rights(federation)}
    with ThreadPoolExecutor(len(federation.namespaces), thread_name_prefix="doctor") as pool:
        found = pool.map(
            lambda alias: list(_examined(federation, federation.namespaces[alias], needed.get(alias))),
            federation.namespaces,
        )
        return [finding for each in found for finding in each]


def _examined(federation: Federation, namespace: NamespaceRef, needed: Rights | None) -> Iterator[Finding]:
    if needed is None:
        paired = {alias for pair in federation.pairs.values() for alias in (pair.primary, pair.secondary)}
        if namespace.alias not in paired:
            text = "no task and no pair uses it"
            yield Finding(alias=namespace.alias, subject="tasks", verdict=Verdict.WARNING, text=text, hint="remove it")
        needed = Rights(alias=namespace.alias, kind=namespace.kind, granted_by={})
    one = _Examination(namespace, needed)
    yield from one.service_bus() if namespace.is_service_bus else one.other()


def _http(endpoint: Endpoint) -> http.client.HTTPConnection:
    """The endpoint over HTTP with the same TLS setting as over AMQP: without TLS if the connection string has none."""
    authority = endpoint.authority or endpoint.host
    if not endpoint.tls:
        port = None if authority != endpoint.host else EMULATOR_HTTP_PORT
        return http.client.HTTPConnection(authority, port, timeout=_CONNECT_SECONDS)
    context = ssl.create_default_context(cafile=endpoint.ca_file or None)
    return http.client.HTTPSConnection(authority, timeout=_CONNECT_SECONDS, context=context)


# As OpenSSL names it, whatever the connector.
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"


class _Examination:
    """The tests of one namespace."""

    def __init__(self, namespace: NamespaceRef, needed: Rights) -> None:
        self._namespace = namespace
        self._alias = namespace.alias
        self._needed = needed

    def other(self) -> Iterator[Finding]:
        """The tests of a system that is not Service Bus."""
        yield from self._password()
        options = namespace_options(self._namespace)
        try:
            system = system_of(self._namespace.kind)
            began = time.monotonic()
            identity = system.identity(options)
        except (IsthmusError, OSError) as error:
            yield self._failed("connect", error)
            return
        # RabbitMQ, for one, sends no name.
        name = identity or next(iter(system.addresses(options)), self._namespace.kind)
        yield self._ok("connect", f"{name} answered in {(time.monotonic() - began) * 1000:.0f} ms")
        for reads, entities in ((True, self._needed.listen), (False, self._needed.send)):
            for entity in entities:
                right = "listen" if reads else "send"
                yield self._tried(f"{right} {entity}", partial(system.check, options, entity, reads=reads), right)

    def _password(self) -> Iterator[Finding]:
        found = [each for each in shown_to(self._namespace) if not may_be_plain(each[0])]
        if found:
            hosts, instead = (", ".join(dict.fromkeys(each)) for each in zip(*found, strict=True))
            text = f"goes to {hosts} without TLS, and whoever sees the packets can read it"
            hint = f"write {instead}; or name hosts of a trusted network in {ALLOWED_VARIABLE}"
            yield Finding(alias=self._alias, subject="password", verdict=Verdict.WARNING, text=text, hint=hint)

    def service_bus(self) -> Iterator[Finding]:
        """Of Service Bus."""
        try:
            endpoint = endpoint_of(SourceOptions.read(namespace_options(self._namespace) | {"entity": "$cbs"}))
        except IsthmusError as error:
            yield self._failed("credentials", error)
            return
        began = time.monotonic()
        try:
            client = Client(endpoint, name="isthmus-doctor").open(_CONNECT_SECONDS)
        except (IsthmusError, OSError) as error:
            yield self._failed("connect", error)
            return
        client.close(1.0)
        milliseconds = (time.monotonic() - began) * 1000
        yield self._ok("connect", f"{endpoint.host} answered in {milliseconds:.0f} ms")
        if endpoint.tls:
            yield from self._certificate(endpoint)
        yield from self._clock(endpoint)
        for right, entities, attach in (
            ("listen", self._needed.listen, _attach_receiver),
            ("send", self._needed.send, _attach_sender),
        ):
            for entity in entities:
                yield self._tried(f"{right} {entity}", partial(_attached, endpoint, entity, attach), right)
        yield from self._management()

    def _certificate(self, endpoint: Endpoint) -> Iterator[Finding]:
        context = ssl.create_default_context(cafile=endpoint.ca_file or None)
        with suppress(OSError, ValueError):  # the connection over TLS has been tested already
            plain = socket.create_connection((endpoint.host, endpoint.port), _CONNECT_SECONDS)
            with plain, context.wrap_socket(plain, server_hostname=endpoint.host) as wrapped:
                certificate = wrapped.getpeercert() or {}
            expires = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(certificate["notAfter"])), UTC)
            yield certificate_finding(self._alias, expires)

    def _clock(self, endpoint: Endpoint) -> Iterator[Finding]:
        before = datetime.now(UTC)
        try:
            with closing(_http(endpoint)) as asked:
                asked.request("GET", "/$namespaceinfo?api-version=2021-05")
                date = asked.getresponse().getheader("Date", "")
            there = parsedate_to_datetime(date)
        except (OSError, ValueError, http.client.HTTPException) as error:
            text = f"not compared: {scrub(str(error)) or type(error).__name__}"
            yield Finding(alias=self._alias, subject="clock", verdict=Verdict.UNKNOWN, text=text)
            return
        yield clock_finding(self._alias, there, before, datetime.now(UTC))

    def _management(self) -> Iterator[Finding]:
        try:
            with closing(open_administration(self._namespace)) as opened:
                describe = getattr(opened, "describe", None)
                text = describe() if describe is not None else "may manage"
                yield self._ok("manage", text)
                yield from self._sizes(opened)
        except AdministrationError as error:
            hint = error.hint
            if not error.retryable:
                hint = f"only plan and apply need it; granted by {self._needed.granted_by.get('manage', 'its owner')}"
            verdict = Verdict.UNKNOWN if error.retryable else Verdict.WARNING
            yield Finding(alias=self._alias, subject="manage", verdict=verdict, text=scrub(error.reason), hint=hint)
        except IsthmusError as error:
            yield self._failed("manage", error)

    def _sizes(self, opened: Administration) -> Iterator[Finding]:
        for entity in self._needed.manage:
            size = opened.size(entity)
            if size is not None and size.limit_bytes:
                yield fill_finding(self._alias, entity, size.used_bytes, size.limit_bytes)

    def _tried(self, subject: str, attempt: Callable[[], object], right: str) -> Finding:
        try:
            attempt()
        except EntityNotFoundError:
            return Finding(
                alias=self._alias, subject=subject, verdict=Verdict.WARNING, text="is not there", hint=_ABSENT
            )
        except UnauthorizedError as error:
            hint = f"granted by {self._needed.granted_by.get(right, 'the operator of the namespace')}"
            return Finding(alias=self._alias, subject=subject, verdict=Verdict.FAULT, text=scrub(str(error)), hint=hint)
        except (IsthmusError, OSError) as error:
            return self._failed(subject, error)
        return self._ok(subject, "allowed")

    def _ok(self, subject: str, text: str) -> Finding:
        return Finding(alias=self._alias, subject=subject, verdict=Verdict.OK, text=text)

    def _failed(self, subject: str, error: Exception) -> Finding:
        hint = str(getattr(error, "hint", "")) or _remedy(str(error))
        text = scrub(str(error)).removesuffix(f"; {hint}") if hint else scrub(str(error))
        return Finding(alias=self._alias, subject=subject, verdict=Verdict.FAULT, text=text, hint=hint)


def _remedy(text: str) -> str:
    """The hint for a certificate that TLS does not trust; empty for any other error."""
    if _UNTRUSTED not in text:
        return ""
    return "write ca_file: the PEM file of the authority that issued the namespace's certificate; if there is one, check that it is the right one"


def _attached(endpoint: Endpoint, entity: str, attach: Callable[[Client, str], object]) -> None:
    """Attach to an entity, without credit and without a message."""
    client = open_client(endpoint, entity, "isthmus-doctor", _CONNECT_SECONDS)
    try:
        attach(client, entity)
    finally:
        client.close(1.0)


def _attach_receiver(client: Client, entity: str) -> None:
    try:
        Receiver(client, entity).wait_attached(_ATTACH_SECONDS)
    except NotAllowedError as refused:
        # It may require sessions: then a session that no receiver has shows the right.
        session = f"isthmus-doctor-{uuid.uuid4().hex}"
        try:
            Receiver(client, entity, in_session=True, session_id=session).wait_attached(_ATTACH_SECONDS)
        except NotAllowedError:
            raise refused from None


def _attach_sender(client: Client, entity: str) -> None:
    Sender(client, entity).wait_ready(_ATTACH_SECONDS)
