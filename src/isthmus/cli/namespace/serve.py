"""`isthmus namespace`: run a Service Bus namespace on this machine.

What it is: options and output of `serve`; the other verbs are in `health`, `key` and `operation`. What it is not: the namespace
(`isthmus.broker.process`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from isthmus.cli.namespace import health, key
from isthmus.cli.namespace.operation import register_operations

__all__ = ["register"]

_PORT_STEP = 10
_LAST_PORT = 65_535


def register(app: typer.Typer) -> None:
    """Add the verb."""
    namespace = typer.Typer(
        no_args_is_help=True, help="Run a Service Bus namespace on this machine, and manage its messages."
    )
    namespace.command("serve")(_serve)
    key.register(namespace)
    health.register(namespace)
    register_operations(namespace)
    namespace.callback()(_options)
    app.add_typer(namespace, name="namespace")


def _options() -> None:
    """Run a Service Bus namespace on this machine, and manage its messages."""
    # The store creates files at any time, with bodies and keys: the files of these verbs are for their user alone.
    os.umask(0o077)


def _serve(
    data: Annotated[Path, typer.Option(help="Folder of messages, keys and certificate; created if absent.")],
    config: Annotated[
        list[Path] | None,
        typer.Option(help="Entities to create at the start: YAML, or the emulator's JSON layout. Repeated: see above."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port for AMQP; 0: any free one.", min=0, max=65535)] = 5672,
    tls_port: Annotated[int, typer.Option(help="Port for AMQP over TLS; 0: any free one.", min=0, max=65535)] = 5671,
    http_port: Annotated[int, typer.Option(help="Port for administration; 0: any free one.", min=0, max=65535)] = 5300,
    clock_offset: Annotated[float, typer.Option(help="Seconds added to the wall clock, to test skew.")] = 0.0,
    certificate: Annotated[Path | None, typer.Option(help="Certificate chain (PEM) to present to clients.")] = None,
    certificate_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    host_name: Annotated[
        list[str] | None,
        typer.Option(
            help="A name that clients connect to: it is in the namespace's own certificate, and tokens may name it."
        ),
    ] = None,
    allow_plain: Annotated[
        bool, typer.Option("--allow-plain", help="Serve without TLS also on an address that others reach.")
    ] = False,
    zone: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of one of three copies of the store, each on another disk; given three times."),
    ] = None,
    emulator: Annotated[
        bool,
        typer.Option("--emulator", help="Also accept the well-known key of the vendor's emulator; on loopback only."),
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print how to connect as one JSON object.")] = False,
) -> None:
    """Serve a namespace until SIGTERM or Ctrl-C.

    Every port speaks AMQP, TLS, HTTP and WebSocket, distinguished by their first bytes.

    With --config more than once, each file is a namespace of its own in this process: its folder is below --data and has
    the file's name without the ending, and its ports are 10 higher than those of the one before. Each --zone has such folders, too.
    """
    import uvloop

    from isthmus.broker.process import serve
    from isthmus.broker.server import Options

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S%z"
    )
    logging.getLogger("isthmus.broker.admin").setLevel(logging.WARNING)
    options = Options(
        data=data,
        config=config[0] if config else None,
        host=host,
        port=port,
        tls_port=tls_port,
        http_port=http_port,
        clock_offset_ms=int(clock_offset * 1000),
        allow_plain=allow_plain,
        certificate=certificate,
        certificate_key=certificate_key,
        host_names=tuple(host_name or ()),
        emulator=emulator,
        zones=tuple(zone or ()),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        several = _several(options, config or [])
        runner.run(serve(list(several.values()), lambda all_: _print_all(list(several), all_, json_output)))


def _several(options: Any, files: list[Path]) -> dict[str, Any]:
    """The options of each namespace by its name.

    Raises:
        InvalidArgumentError: two would have the same folder, or a port is too high.
    """
    from dataclasses import replace

    from isthmus.errors import InvalidArgumentError

    if len(files) < 2:
        return {"": options}
    found: dict[str, Any] = {}
    for number, file in enumerate(files):
        ports = {
            name: port + _PORT_STEP * number if (port := getattr(options, name)) else 0
            for name in ("port", "tls_port", "http_port")
        }
        if file.stem in found:
            raise InvalidArgumentError(f"two files are called '{file.stem}': each is a namespace's name; rename one")
        if max(ports.values()) > _LAST_PORT:
            raise InvalidArgumentError(f"the ports of '{file.stem}' would be above {_LAST_PORT}; start with lower ones")
        zones = tuple(zone / file.stem for zone in options.zones)
        found[file.stem] = replace(options, config=file, data=options.data / file.stem, zones=zones, **ports)
    return found


def _print_all(names: list[str], described: list[dict[str, Any]], as_json: bool) -> None:
    if len(names) == 1:
        _print_ready(described[0], as_json)
    elif as_json:
        shown = ("connection_string", "admin_connection_string", "ports")
        found = {name: {key: each[key] for key in shown} for name, each in zip(names, described, strict=True)}
        print(json.dumps({"namespaces": found}), flush=True)
    else:
        for name, each in zip(names, described, strict=True):
            print(f"namespace                {name}")
            _print_ready(each, as_json)


def _print_ready(described: dict[str, Any], as_json: bool) -> None:
    if as_json:
        shown = {name: described[name] for name in ("connection_string", "admin_connection_string", "ports")}
        print(json.dumps(shown), flush=True)
        return
    print(f"connection string        {described['connection_string']}")
    print(f"for administration       {described['admin_connection_string']}")
    if "emulator_connection_string" in described:
        print(f"as the emulator          {described['emulator_connection_string']}")
    print("ports                    " + ", ".join(f"{name} {port}" for name, port in described["ports"].items()))
    if "ca_file" in described:
        print(f"clients over TLS trust   {described['ca_file']}")
    print("Ctrl-C stops the namespace.", flush=True)
