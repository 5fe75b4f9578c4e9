"""Checks before a run starts Spark: whether every route can run.

What it is: the secrets, the connections and the entities of the routes, tested once, all namespaces at the same time. A
fault that only the operator can fix ends the run before it begins; one that may pass, e.g. an unreachable
namespace, is logged, and the routes are retried. What it is not: the check of the file (`isthmus.topology.linter`), or of
rules and settings of entities (`isthmus plan`).

Invariants:
    I1. All faults of all namespaces are reported together.
    I2. A namespace that does not answer is not a fault, and does not hide the faults of others.
    I3. Nothing is changed at a namespace.
    I4. Two aliases of one namespace are a fault, as for `isthmus plan`: a connection may have been changed since its check, and messages
        would be sent back to their source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from isthmus.connectors.secret import resolve, scrub
from isthmus.errors import EntityDisabledError, EntityNotFoundError, Fault, IsthmusError
from isthmus.replication.namespace_clients import NamespaceClients, namespace_options
from isthmus.topology.claim import claim_endpoint
from isthmus.topology.file.setting import Kind
from isthmus.topology.kind import KINDS
from isthmus.topology.model import Endpoint, Federation, NamespaceRef, Route
from isthmus.transport import Sender

__all__ = ["Preflight", "is_fault", "preflight"]

_ATTACH_SECONDS = 10.0
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"


@dataclass(frozen=True, slots=True)
class Preflight:
    """The results.

    Attributes:
        faults: those that only the operator can fix.
        away: by alias, why a namespace cannot be used now.
    """

    faults: tuple[Fault, ...] = ()
    away: tuple[tuple[str, str], ...] = ()


class _Found(NamedTuple):
    """The results of one namespace; `identity` is the name that a Service Bus namespace reports, if it was reached."""

    alias: str
    faults: tuple[Fault, ...] = ()
    away: tuple[tuple[str, str], ...] = ()
    identity: str = ""


def is_fault(error: IsthmusError) -> bool:
    """Whether the same attempt fails until the configuration is changed."""
    if _UNTRUSTED in str(error):
        return True
    return not error.retryable and not isinstance(error, EntityDisabledError)


def preflight(federation: Federation, routes: Sequence[Route], clients: Callable[[], NamespaceClients]) -> Preflight:
    """Test everything that the routes need; blocks for seconds if a namespace does not answer.

    Args:
        federation: with absolute paths.
        routes: of the run.
        clients: opens the namespaces; called once for each, since connections belong to one thread.
    """
    ends = [each for route in routes for each in (route.source, *route.sent_to) if not each.is_table]
    aliases = list(dict.fromkeys(each.alias for each in ends))
    if not aliases:
        return Preflight()
    with ThreadPoolExecutor(len(aliases), thread_name_prefix="preflight") as pool:
        found = list(pool.map(lambda alias: _namespace(federation, routes, alias, clients), aliases))
    faults = [fault for each in found for fault in each.faults]
    for first, second in combinations(found, 2):
        if first.identity and first.identity == second.identity:
            faults.append(
                _fault(
                    federation,
                    second.alias,
                    f"it is namespace {first.alias} too",
                    "write one alias, or another connection",
                )
            )
    return Preflight(tuple(faults), tuple(pair for each in found for pair in each.away))


def _fault(federation: Federation, alias: str, message: str, hint: str = "") -> Fault:
    place = federation.namespaces[alias].place
    return Fault(f"namespace {alias}: {scrub(message)}", hint, federation.file, place.line, place.column)


def _absent(name: str, path: str, fault: Callable[[str, str], Fault]) -> Fault:
    if name == "checkpoints":
        # A new checkpoint with `start: now` skips the messages since the lost one.
        return fault(
            f"there is no folder {path} of checkpoints",
            "make it by: isthmus apply; if tasks have used it before, restore it, or write start: existing first",
        )
    return fault(f"there is no file {path}", f"write {name}: a PEM file")


def _namespace(
    federation: Federation, routes: Sequence[Route], alias: str, clients: Callable[[], NamespaceClients]
) -> _Found:
    namespace = federation.namespaces[alias]
    fault = partial(_fault, federation, alias)
    options = namespace_options(namespace)
    ca_file = options.get("ca_file", "")
    if ca_file and not Path(ca_file).is_file():
        return _Found(alias, (fault(f"there is no file {ca_file}", "write ca_file: the PEM file of the authority"),))
    kind = KINDS[namespace.kind]
    files = [kind.option(each.name) for each in kind.settings if each.kind is Kind.PATH]
    for name in files:
        if not Path(options.get(name, "/")).exists():
            return _Found(alias, (_absent(name, options[name], fault),))
    secrets = [kind.option(each.name) for each in kind.settings if each.kind is Kind.REFERENCE]
    try:
        for name in ("connection", *secrets):
            if options.get(name):
                resolve(options[name])
    except IsthmusError as error:
        return _Found(alias, (fault(str(error)),)) if is_fault(error) else _Found(alias, away=((alias, str(error)),))
    faults: list[Fault] = []
    identity = ""
    with clients() as opened:
        for attempt in _attempts(routes, namespace, opened):
            try:
                identity = attempt() or identity
            except EntityNotFoundError as error:
                faults.append(fault(str(error), "make it by: isthmus apply"))
            except IsthmusError as error:
                if not is_fault(error):
                    return _Found(alias, tuple(faults), ((alias, scrub(str(error))),), identity)
                faults.append(fault(str(error)))
            except OSError as error:
                return _Found(alias, tuple(faults), ((alias, scrub(str(error))),), identity)
    return _Found(alias, tuple(dict.fromkeys(faults)), identity=identity)


def _attempts(
    routes: Sequence[Route], namespace: NamespaceRef, clients: NamespaceClients
) -> Iterator[Callable[[], str | None]]:
    """The tests: peek the sources of the routes, and attach to their targets; each returns the name that a Service Bus namespace reports."""
    alias = namespace.alias
    sources = [route.source for route in routes if route.source.alias == alias]
    targets = [target for route in routes for target in route.sent_to if target.alias == alias]
    if not namespace.is_service_bus:
        yield from (partial(clients.check, each, reads=True) for each in dict.fromkeys(sources))
        yield from (partial(clients.check, each, reads=False) for each in dict.fromkeys(targets))
        return
    claims = [claim_endpoint(route.task, alias) for route in routes if route.is_claimed and route.claim_alias == alias]
    for source in dict.fromkeys((*claims, *sources)):
        yield partial(_browse, clients, source)
    for target in dict.fromkeys(targets):
        yield partial(_attach, clients, target)


def _browse(clients: NamespaceClients, source: Endpoint) -> str:
    clients.peek(source)(0, 1)
    return clients.identity(source.alias)


def _attach(clients: NamespaceClients, target: Endpoint) -> str:
    client = clients.open(target)
    try:
        Sender(client, target.entity).wait_ready(_ATTACH_SECONDS)
    finally:
        client.close(1.0)
    return client.namespace_id
