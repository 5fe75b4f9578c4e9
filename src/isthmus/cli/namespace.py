"""`isthmus namespace`: run a Service Bus namespace on this machine.

What it is: options and output of `serve`; the other verbs are in `_namespace_operations`. What it is not: the namespace
(`isthmus.broker.server`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from isthmus.cli import namespace_keys
from isthmus.cli._namespace_operations import register_operations

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    namespace = typer.Typer(
        no_args_is_help=True, help="Run a Service Bus namespace on this machine, and see to its messages."
    )
    namespace.command("serve")(_serve)
    namespace_keys.register(namespace)
    register_operations(namespace)
    namespace.callback()(_options)
    app.add_typer(namespace, name="namespace")


def _options() -> None:
    """Run a Service Bus namespace on this machine, and see to its messages."""


def _serve(
    data: Annotated[Path, typer.Option(help="Folder of messages, keys and certificate; made if absent.")],
    config: Annotated[
        Path | None, typer.Option(help="Entities to make at the start: YAML, or the emulator's JSON layout.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port for AMQP; 0: any free one.", min=0, max=65535)] = 5672,
    tls_port: Annotated[int, typer.Option(help="Port for AMQP over TLS; 0: any free one.", min=0, max=65535)] = 5671,
    http_port: Annotated[int, typer.Option(help="Port for administration; 0: any free one.", min=0, max=65535)] = 5300,
    clock_offset: Annotated[float, typer.Option(help="Seconds added to the wall clock, to test skew.")] = 0.0,
    certificate: Annotated[Path | None, typer.Option(help="Certificate chain (PEM) to show.")] = None,
    certificate_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    host_name: Annotated[
        list[str] | None, typer.Option(help="A name that clients dial, for the namespace's own certificate.")
    ] = None,
    allow_plain: Annotated[
        bool, typer.Option("--allow-plain", help="Serve without TLS also on an address that others reach.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print how to connect as one JSON object.")] = False,
) -> None:
    """Serve a namespace until SIGTERM or Ctrl-C.

    Every port speaks AMQP, TLS, HTTP and WebSocket, told apart by their first bytes.
    """
    import uvloop

    from isthmus.broker.server import Options, serve

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S%z"
    )
    logging.getLogger("isthmus.broker.admin").setLevel(logging.WARNING)
    options = Options(
        data=data,
        config=config,
        host=host,
        port=port,
        tls_port=tls_port,
        http_port=http_port,
        clock_offset_ms=int(clock_offset * 1000),
        allow_plain=allow_plain,
        certificate=certificate,
        certificate_key=certificate_key,
        host_names=tuple(host_name or ()),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(options, lambda described: _print_ready(described, json_output)))


def _print_ready(described: dict[str, Any], as_json: bool) -> None:
    if as_json:
        shown = {name: described[name] for name in ("connection_string", "admin_connection_string", "ports")}
        print(json.dumps(shown), flush=True)
        return
    print(f"connection string        {described['connection_string']}")
    print(f"for administration       {described['admin_connection_string']}")
    print("ports                    " + ", ".join(f"{name} {port}" for name, port in described["ports"].items()))
    if "ca_file" in described:
        print(f"clients over TLS trust   {described['ca_file']}")
    print("Ctrl-C stops the namespace.", flush=True)
