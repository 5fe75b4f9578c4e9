"""`isthmus bench`: measure one namespace, the bridge through Spark, its latency, and other tools."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from isthmus.errors import InvalidArgumentError, IsthmusError
from isthmus.extra import require

__all__ = ["register"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder for the data of the measured namespaces, on a real disk. By default below /var/tmp."),
]
Messages = Annotated[int, typer.Option(min=1000, help="How many messages.")]
Peers = Annotated[str, typer.Option(help="Measure these tools, too, split by commas: shovel, sdk-loop.")]
Spike = Annotated[Path | None, typer.Option(help="Folder of a bare prototype to measure too.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        help="NAME=VALUE for the read; a NAME that begins with `spark.` is set on its session.",
    ),
]
PEERS = ("shovel", "sdk-loop")
LONGEST_ROUND_TRIP_MS = 2000


def register(app: typer.Typer) -> None:
    """Add the verb."""
    bench = typer.Typer(no_args_is_help=True, help="Measure, on this machine; nothing else should run on it.")
    bench.command("namespace")(namespace)
    bench.command("bridge")(bridge)
    bench.command("table")(table)
    bench.command("start")(start)
    bench.command("latency")(latency)
    bench.command("rtt")(rtt)
    bench.command("large")(large)
    bench.command("all")(everything)
    app.add_typer(bench, name="bench")


def namespace(messages: Messages = 200_000, data: Data = None, as_json: Json = False) -> None:
    """One namespace: ingest by batches and one by one, receive and complete, ready again with all messages waiting."""
    require("spark", "isthmus bench")
    from isthmus.bench.namespace import measure_namespace

    with _folder(data) as folder:
        result = _result("namespace", folder, measure_namespace(folder / "namespace", messages))
    _print_result(result, as_json)


def bridge(
    messages: Messages = 400_000,
    peers: Peers = "",
    spike: Spike = None,
    option: Options = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Drain durable messages of 1 KiB from a queue in one namespace to a queue in another, through Spark."""
    require("spark", "isthmus bench")
    chosen = _peers(peers)
    with _folder(data) as folder:
        result = _result("bridge", folder, _bridge(folder, messages, chosen, spike, option or []))
    _print_result(result, as_json)


def table(messages: Messages = 400_000, option: Options = None, data: Data = None, as_json: Json = False) -> None:
    """Write durable messages of 1 KiB from a queue into a table of Parquet files, and compare with a plain receiver."""
    from isthmus.bench.table import measure_table

    with _folder(data) as folder:
        result = _result("table", folder, measure_table(folder, messages, option or []))
    _print_result(result, as_json)


def start(
    members: Annotated[int, typer.Option(min=2, max=20, help="Namespaces with an all-active topic between them.")] = 3,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """The time from the start of `isthmus run` until all routes carry messages."""
    require("spark", "isthmus bench")
    from isthmus.bench.start import measure_start

    with _folder(data) as folder:
        result = _result("start", folder, measure_start(folder / "start", members))
    _print_result(result, as_json)


def latency(
    rate: Annotated[float, typer.Option(min=0.1, help="Messages per second on each route.")] = 500,
    seconds: Annotated[float, typer.Option(min=1, help="How long to measure, after a warm-up.")] = 60,
    routes: Annotated[int, typer.Option(min=1, help="How many routes run at once.")] = 1,
    option: Options = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """The time from send to receipt through Spark, at a steady rate."""
    require("spark", "isthmus bench")
    from isthmus.bench.latency import measure_latency

    with _folder(data) as folder:
        result = _result(
            "latency", folder, measure_latency(folder / "latency", rate, seconds, routes=routes, options=option or [])
        )
    _print_result(result, as_json)


def rtt(
    messages: Messages = 200_000,
    delays: Annotated[
        str,
        typer.Option(help="Round trips to the target in ms, split by commas; the others are compared with the first."),
    ] = "0,10,50,100,200",
    credit: Annotated[
        int, typer.Option(min=1, help="Deliveries that the target grants; the service grants 1,000.")
    ] = 1000,
    alone: Annotated[bool, typer.Option("--alone", help="Also with each message in a delivery of its own.")] = False,
    rate: Annotated[
        float, typer.Option(min=0.1, help="Messages per second of the load whose latency is measured.")
    ] = 500,
    seconds: Annotated[float, typer.Option(min=0, help="How long that load lasts; 0 omits it.")] = 10,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """The rate through Spark to a distant target, by the round trip."""
    require("spark", "isthmus bench")
    from isthmus.bench.distance import measure_round_trips

    trips = _round_trips(delays)
    with _folder(data) as folder:
        measured = measure_round_trips(
            folder / "rtt", messages, trips, credit=credit, alone=alone, rate=rate, seconds=seconds
        )
        result = _result("rtt", folder, measured)
    _print_result(result, as_json)


def large(
    rate: Annotated[float, typer.Option(min=1, help="Small messages per second.")] = 200,
    seconds: Annotated[float, typer.Option(min=1, help="How long each period lasts, after a warm-up.")] = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Periods of either kind, alternately.")] = 3,
    megabytes: Annotated[int, typer.Option(min=2, max=100, help="Size of a large message.")] = 100,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """The latency of small messages with large ones, and without."""
    require("spark", "isthmus bench")
    from isthmus.bench.large import LARGEST_BYTES, measure_large

    size_bytes = min(LARGEST_BYTES, megabytes << 20)
    with _folder(data) as folder:
        measured = measure_large(folder / "large", rate, seconds, rounds=rounds, size_bytes=size_bytes)
        result = _result("large", folder, measured)
    _print_result(result, as_json)


def everything(
    messages: Messages = 400_000,
    rate: Annotated[float, typer.Option(min=0.1, help="Messages per second of the latency part.")] = 500,
    seconds: Annotated[float, typer.Option(min=1, help="How long the latency part lasts.")] = 60,
    peers: Peers = "",
    spike: Spike = None,
    option: Options = None,
    results: Annotated[Path | None, typer.Option(help="Write a table and the JSON into this folder.")] = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """All measurements in one run, with a table of the results."""
    require("spark", "isthmus bench")
    from isthmus.bench.latency import measure_latency
    from isthmus.bench.namespace import measure_namespace
    from isthmus.bench.report import write_report

    chosen = _peers(peers)
    if results is not None:
        _usable(results).rmdir()  # results that cannot be written after half an hour of measurements are lost
    with _folder(data) as folder:
        result = _result("all", folder, {})
        result["namespace"] = measure_namespace(folder / "namespace", messages)
        _progress("namespace", result["namespace"])
        result["bridge"] = _bridge(folder, messages, chosen, spike, option or [])
        result["latency"] = measure_latency(folder / "latency", rate, seconds, options=option or [])
        _progress("latency", result["latency"])
    if results is not None:
        print(f"written: {write_report(results, result)}")
    _print_result(result, as_json)


def _bridge(folder: Path, messages: int, peers: list[str], spike: Path | None, options: list[str]) -> dict[str, Any]:
    from isthmus.bench import bridge as bridge_module
    from isthmus.bench.peer import shovel
    from isthmus.bench.peer.spike import measure_spike
    from isthmus.bench.report import peer_ratios

    ours = bridge_module.measure_bridge(folder / "bridge", messages, options)
    _progress("bridge", ours.to_dict())
    measured: dict[str, dict[str, Any]] = {}
    if "shovel" in peers:
        if shovel.is_installed():
            rabbit = _peer(lambda: bridge_module.measure_shovel(folder / "shovel", messages).to_dict())
            measured["shovel"] = {"version": shovel.rabbitmq_version(), **rabbit}
        else:
            measured["shovel"] = {"absent": f"to install: {shovel.INSTALL_HINT}"}
        _progress("shovel", measured["shovel"])
    if "sdk-loop" in peers:
        share = max(2000, messages // bridge_module.SDK_LOOP_SHARE)
        measured["sdk-loop"] = _peer(lambda: bridge_module.measure_sdk_loop(folder / "sdk-loop", share).to_dict())
        _progress("sdk-loop", measured["sdk-loop"])
    if spike is not None:
        measured["spike"] = dict(measure_spike(spike, messages))
        _progress("spike", measured["spike"])
    result = ours.to_dict()
    if measured:
        result |= {"peers": measured, **peer_ratios(ours.messages_per_second, measured)}
    return result


def _peer(measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """The result of another tool, or its failure, which must not lose the measurements of the others."""
    try:
        return dict(measure())
    except IsthmusError as error:
        return {"failed": str(error).splitlines()[-1].strip()}


def _peers(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; known: {', '.join(PEERS)}", param_hint="--peers")
    return names


def _round_trips(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found) or not all(0 <= each <= LONGEST_ROUND_TRIP_MS for each in found):
        raise typer.BadParameter(
            f"'{text}' is no list of different round trips from 0 to {LONGEST_ROUND_TRIP_MS} ms, e.g. 0,10,100",
            param_hint="--delays",
        )
    return found


@contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    """A fresh folder for the data of one run, removed afterwards."""
    parent = data or Path("/var/tmp")  # noqa: S108 - a disk, unlike /tmp on many systems; a fresh folder with mode 0700
    folder = _usable(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _usable(parent: Path) -> Path:
    """A fresh folder in `parent`, which is created if it is missing.

    Raises:
        InvalidArgumentError: the folder is not writable.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="isthmus-bench-", dir=parent))
    except OSError as error:
        raise InvalidArgumentError(f"nothing can be written in {parent}: {error.strerror or error}") from None


def _result(name: str, folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    from isthmus.bench.machine import describe_machine

    machine = describe_machine(folder)
    if machine["file system"] in {"tmpfs", "ramfs"}:
        typer.echo("note: the data are in memory; a sync costs nothing here (--data DIR chooses a disk)", err=True)
    return {"benchmark": name, **values, "machine": machine}


def _progress(name: str, values: dict[str, Any]) -> None:
    shown = {key: value for key, value in values.items() if isinstance(value, int | float | str)}
    typer.echo(f"{name}: " + ", ".join(f"{key} {value}" for key, value in shown.items()), err=True)


def _print_result(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    _print_table(result, "")


def _print_table(values: dict[str, Any], indent: str) -> None:
    for name, value in values.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            _print_table(value, indent + "  ")
        else:
            print(
                f"{indent}{name:<{28 - len(indent)}} {value:>14,}"
                if isinstance(value, int | float)
                else f"{indent}{name:<{28 - len(indent)}} {value}"
            )
