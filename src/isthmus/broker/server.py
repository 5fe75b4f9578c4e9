"""One namespace that is served: store, engine, keys, certificate and listeners put together.

What it is: the composition of a namespace, from opening the data folder to a clean stop. What it is not: the process, which may serve several
(`isthmus.broker.process`), nor any of the parts.

Invariants:
    I1. `start` returns when clients can connect; `stop` returns when everything acknowledged is on disk and the folder
        is free.
    I2. Plain connections are served on loopback addresses only, unless the operator allows more.
    I3. The data folder, and everything in it, is accessible to the process's user only.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus.broker.backup import FRAGMENTS_FOLDER, LARGE_FOLDER
from isthmus.broker.config.namespace_file import NamespaceConfig, load_config
from isthmus.broker.config.provision import provision
from isthmus.broker.namespace import Namespace
from isthmus.broker.net.admission import Admission, AdmissionLimits
from isthmus.broker.net.descriptor import socket_limit, upload_limit
from isthmus.broker.net.http_gate import HttpGate
from isthmus.broker.net.listener import Listener
from isthmus.broker.net.shell import Shell
from isthmus.broker.net.sniff import Speech
from isthmus.broker.random_pool import RandomPool
from isthmus.broker.running import forget_running, write_running
from isthmus.broker.security.authority import Authority
from isthmus.broker.security.certificate import CertificateFiles, ensure_certificate, server_context
from isthmus.broker.security.emulator_key import emulator_connection_string
from isthmus.broker.security.entity_rules import EngineRules
from isthmus.broker.security.grant import Grant
from isthmus.broker.security.jwt_setting import JwtSettings
from isthmus.broker.security.own_host import OwnHosts
from isthmus.broker.security.served_keys import ServedKeys
from isthmus.broker.zone import ZoneFiles, check_zones, close_zoned, open_zoned
from isthmus.clock import SystemClock
from isthmus.entities import BlobFiles, Engine, FragmentStores, Journal, Limits
from isthmus.errors import ConfigError, Fault, InvalidArgumentError, StoreError
from isthmus.store import BlobFolder, RocksJournal, make_private, narrow_files

__all__ = ["Options", "Server"]

_log = logging.getLogger(__name__)

# How soon a change of a key file takes effect.
_KEY_REFRESH_SECONDS = 2.0
# The share of a store's memory for each of the stores of fragments, which are four by default.
_FRAGMENT_SHARE = 4
# The size of a sync of a few messages; a larger one is worth a thread switch.
_QUICK_SYNC_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Options:
    """The operator's options for a namespace process.

    Attributes:
        data: folder of store, keys and certificate; created if absent.
        config: file of entities to create; None for none.
        host: address to listen on.
        port: for AMQP; 0 is any free one. Every port serves every protocol; they differ only in the connection strings shown for them.
        tls_port: for AMQP over TLS.
        http_port: for administration.
        clock_offset_ms: added to the wall time of messages.
        allow_plain: serve clients without TLS also on an address that others reach.
        certificate: PEM file of a certificate chain to show instead of the namespace's own.
        certificate_key: its private key.
        host_names: names and addresses besides the local ones that clients connect to: the namespace's own certificate
            contains them, and the resource of a token may begin with them.
        namespaces: how many share the process and its descriptors.
        zones: three folders for three copies of the store; without them, and with none in the config, it is in the data folder.
        emulator: accept the well-known key of the vendor's emulator besides the namespace's own; on loopback only.
    """

    data: Path
    config: Path | None = None
    host: str = "127.0.0.1"
    port: int = 5672
    tls_port: int = 5671
    http_port: int = 5300
    clock_offset_ms: int = 0
    allow_plain: bool = False
    certificate: Path | None = None
    certificate_key: Path | None = None
    host_names: tuple[str, ...] = field(default=())
    namespaces: int = 1
    emulator: bool = False
    zones: tuple[Path, ...] = ()


class Server:
    """One served namespace.

    Args:
        options: of the operator.

    Attributes:
        namespace: None until started.
        ports: of the listeners by name, once started.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._stack = contextlib.AsyncExitStack()
        self._keys: ServedKeys | None = None
        self._zone_files: ZoneFiles | None = None
        self._certificate: CertificateFiles | None = None
        self.namespace: Namespace | None = None
        self.ports: dict[str, int] = {}

    async def start(self) -> None:
        """Opens the data folder and listens.

        Raises:
            ConfigError: the config file has faults.
            StoreError: the folder is in use, or cannot be read.
            ListenError: an address cannot be listened on.
            InvalidArgumentError: options contradict each other, or the data folder cannot be made.
        """
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self) -> None:
        options = self._options
        config = load_config(options.config) if options.config is not None else NamespaceConfig()
        if (options.certificate is None) != (options.certificate_key is None):
            raise InvalidArgumentError("a certificate needs its key, and a key its certificate")
        if options.emulator and not is_loopback(options.host):
            raise InvalidArgumentError(
                f"the emulator's key is known to everybody: it cannot be taken on '{options.host}', which others reach; "
                "listen on 127.0.0.1, or leave --emulator out"
            )
        _make_private(options.data)
        machine_clock = SystemClock()
        clock = SystemClock(options.clock_offset_ms)
        store, blobs, open_fragments = self._open_store(options.zones or config.zones)
        limits = config.limits
        random_bytes = RandomPool()
        stores = FragmentStores(open_fragments, clock, limits, random_bytes)
        engine = Engine(store, clock, limits=limits, random_bytes=random_bytes, blob_files=blobs, stores=stores)
        self._stack.callback(engine.close)
        issuer = _load_issuer(config.jwt) if config.jwt is not None else None
        keys = self._keys = self._open_keys(config, machine_clock, issuer)
        hosts = OwnHosts((options.host, *options.host_names))
        authority = _MachineTimeAuthority(keys.keyring, EngineRules(engine), issuer, hosts)
        name = config.name or "isthmus"
        namespace = self.namespace = Namespace(
            engine,
            store,
            authority,
            clock,
            name=name,
            max_message_size_bytes=limits.max_message_size_bytes,
            limits=config.connection_limits,
            admission=self._admission(config),
            uploads_limit=upload_limit(options.namespaces),
            quick_sync_bytes=0 if self._zone_files is not None else _QUICK_SYNC_BYTES,
        )
        self._stack.push_async_callback(namespace.close)
        provision(engine, config, file=str(options.config or ""), limits=limits)
        namespace.every(_KEY_REFRESH_SECONDS, keys.refresh)
        commits = namespace.commits
        await commits.wait_durable()
        gate = HttpGate()
        http = await self._stack.enter_async_context(contextlib.AsyncExitStack())
        # Before the HTTP server waits for its requests: a WebSocket counts as one of them until its peer is closed.
        self._stack.push_async_callback(namespace.disconnect)
        await self._listen(namespace, gate, machine_clock.wall_ms())
        self._write_running()
        if self._zone_files is not None:
            self._stack.callback(self._zone_files.close)
            self._zone_files.start()
        loading = asyncio.create_task(_load_http(gate, http, namespace, authority, limits, options.data / "backups"))
        self._stack.callback(gate.close)
        self._stack.push_async_callback(asyncio.wait, [loading])

    def _open_store(self, zones: tuple[Path, ...]) -> tuple[Journal, BlobFiles, Callable[[int], Journal]]:
        """The store, bodies of large messages, and the function that opens a store of fragments."""
        data = self._options.data
        if not zones:
            check_zones(data, ())
            store = RocksJournal(data / "store")
            self._stack.callback(store.close)
            return store, BlobFolder(data / LARGE_FOLDER), lambda index: _open_fragments(data, index)
        zoned = open_zoned(data, zones)
        self._stack.callback(close_zoned, zoned)
        self._zone_files = ZoneFiles(data, zoned.zones, zoned.journal.set_name)
        self._zone_files.restore()
        return zoned.journal, zoned.blobs, zoned.open_fragments

    def _admission(self, config: NamespaceConfig) -> Admission:
        sockets = socket_limit(self._options.namespaces)
        strangers = min(config.connection_limits.max_unauthenticated_connections, max(1, sockets // 2))
        return Admission(AdmissionLimits(sockets, strangers))

    def _open_keys(self, config: NamespaceConfig, clock: SystemClock, issuer: Any) -> ServedKeys:
        keys = ServedKeys(self._options.data, clock, issuer, emulator=self._options.emulator)
        wanted = config.authorization_rules.get("")
        if wanted is not None:
            try:
                keys.apply(wanted)
            except InvalidArgumentError as error:
                fault = Fault(f"authorization_rules: {error}", file=str(self._options.config))
                raise ConfigError([fault]) from None
        return keys

    async def _listen(self, namespace: Namespace, http: Any, now_ms: int) -> None:
        options = self._options
        if options.certificate is not None and options.certificate_key is not None:
            tls = server_context(options.certificate, options.certificate_key)
        else:
            names = (*options.host_names, options.host)
            self._certificate = ensure_certificate(options.data / "certificate", names, now_ms=now_ms)
            tls = server_context(self._certificate.certificate, self._certificate.key)
        protocols = {Speech.AMQP: lambda: Shell(namespace), Speech.HTTP: http}
        plain = options.allow_plain or is_loopback(options.host)
        listeners: dict[int, Listener] = {}
        for name, port in (("amqp", options.port), ("tls", options.tls_port), ("http", options.http_port)):
            listener = listeners.get(port) if port else None
            if listener is None:
                listener = Listener(options.host, port, protocols, tls=tls, plain=plain, admission=namespace.admission)
                self._stack.push_async_callback(listener.close)
                listeners[listener.port] = listener
                listener.start()
            self.ports[name] = listener.port

    def _write_running(self) -> None:
        options = self._options
        running: dict[str, Any] = {"host": self._dialled, "ports": self.ports, "plain": self._is_plain}
        authority = self._certificate.authority if self._certificate is not None else options.certificate
        running["ca_file"] = str(authority.resolve()) if authority is not None else ""
        write_running(options.data, running)
        self._stack.callback(forget_running, options.data)

    @property
    def _is_plain(self) -> bool:
        return self._options.allow_plain or is_loopback(self._options.host)

    @property
    def _dialled(self) -> str:
        """The address at which this machine reaches the namespace."""
        return "127.0.0.1" if self._options.host in {"0.0.0.0", ""} else self._options.host

    async def stop(self) -> None:
        """Stops accepting, commits staged operations, closes everything."""
        if self.namespace is not None:
            self.namespace.is_stopping = True
        await self._stack.aclose()

    def describe(self) -> dict[str, Any]:
        """The connection details: connection strings, ports, and the file of the authority that clients have to trust."""
        assert self._keys is not None, "describe() is for a started server"
        host = self._options.host
        plain = self._options.allow_plain or is_loopback(host)
        shown = "127.0.0.1" if host in {"0.0.0.0", ""} else f"[{host}]" if ":" in host else host
        port = self.ports["amqp"] if plain else self.ports["tls"]
        described: dict[str, Any] = {
            "connection_string": self._keys.keyring.connection_string(f"{shown}:{port}", emulator=plain),
            "admin_connection_string": self._keys.keyring.connection_string(
                f"{shown}:{self.ports['http']}", emulator=plain
            ),
            "ports": dict(self.ports),
        }
        if self._options.emulator:
            described["emulator_connection_string"] = emulator_connection_string(shown, self.ports["amqp"])
        if self._certificate is not None:
            described["ca_file"] = str(self._certificate.authority)
        return described


def _make_private(data: Path) -> None:
    """Makes the data folder readable for the process's user only.

    Raises:
        InvalidArgumentError: it cannot be created, or belongs to another user and is readable by others.
    """
    try:
        if make_private(data):
            _log.warning("the data folder was open to other users, and is so no more: data=%s", data)
        for name in (LARGE_FOLDER, FRAGMENTS_FOLDER):
            if (data / name).exists() and make_private(data / name):
                narrow_files(data / name)
    except StoreError as error:
        raise InvalidArgumentError(str(error)) from None


def _open_fragments(data: Path, index: int) -> RocksJournal:
    """A store of fragments. All of them together use the memory of one namespace store."""
    make_private(data / FRAGMENTS_FOLDER)
    return RocksJournal(data / FRAGMENTS_FOLDER / str(index), share=_FRAGMENT_SHARE)


class _MachineTimeAuthority(Authority):
    """Checks expiry by the machine's clock, without the clock offset of messages: clients make tokens by their own clocks."""

    def authorise_token(self, token: str, audience: str, now_ms: int) -> Grant:
        return super().authorise_token(token, audience, SystemClock().wall_ms())


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _load_http(
    gate: HttpGate,
    stack: contextlib.AsyncExitStack,
    namespace: Namespace,
    authority: Authority,
    limits: Limits,
    backups: Path,
) -> None:
    """Loads the HTTP server in a thread, because AMQP clients need not wait for it, and accepts its connections."""
    try:
        module = await asyncio.to_thread(importlib.import_module, "isthmus.broker.net.http_server")
        gate.open(await module.start_http(namespace, authority, limits, stack, backups))
    except Exception:  # noqa: BLE001 - whatever it is, messages are served all the same
        _log.exception("no administration: the HTTP server does not start")


def _load_issuer(settings: JwtSettings) -> Any:
    """The issuer of web tokens; its library is loaded only where there is one."""
    module = importlib.import_module("isthmus.broker.security.jwt")
    return module.Issuer(settings)
