"""The demo for people: a live view while it runs, and the report at its end."""

from __future__ import annotations

from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from isthmus.demo.play import Scene
from isthmus.supervisor.display import route_table

__all__ = ["LiveView", "report_view"]


class LiveView:
    """Shows states as they come; where the output is not a terminal, a line for each new step.

    Args:
        console: where.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._act = ""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, scene: Scene) -> None:
        if self._live is not None:
            self._live.update(_scene_view(scene))
        if scene.act != self._act:
            self._act = scene.act
            self._console.print(Text(f"{scene.seconds:5.1f} s  {scene.act}"))


def _scene_view(scene: Scene) -> RenderableType:
    bars = Table.grid(padding=(0, 1))
    for origin, count in scene.sent.items():
        bars.add_row(f"published at {origin}", "", f"{count:,}")
    for origin, count in scene.received.items():
        bar = ProgressBar(total=max(1, scene.total), completed=count, width=40)
        bars.add_row(f"shown at {origin}", bar, f"{count:,} of {scene.total:,}")
    return Group(Text(f"{scene.seconds:5.1f} s  {scene.act}", style="bold"), bars, route_table(scene.routes))


def report_view(report: dict[str, Any]) -> RenderableType:
    """The report as tables."""
    proof = Table(title="read independently, by origin and sequence number", title_justify="left", box=None)
    proof.add_column("from")
    proof.add_column("at")
    columns = ("entered", "arrived", "waiting", "lost", "duplicated", "out_of_order")
    for name in columns:
        proof.add_column(name.replace("_", " "), justify="right")
    for each in report["comparisons"]:
        proof.add_row(each["origin"], each["member"], *(f"{each[name]:,}" for name in columns))
    clean = not (report["lost"] or report["duplicated"] or report["out_of_order"])
    burst, paced = report["burst"], report["paced"]
    received = ", ".join(f"{alias} {count:,}" for alias, count in report["received"].items())
    lines = [
        f"sent {report['sent']:,}; received {received}",
        (
            f"burst of {burst['messages']:,}: {report['messages_per_second']:,} copies a second through Spark, "
            f"the last after {burst['arrived_seconds']} s"
        ),
        f"latency at {paced['per_second']:.0f} messages a second: p50 {report['p50_ms']} ms, p99 {report['p99_ms']} ms",
        (
            f"{report['seconds']} s in all, of which {report['set_up_seconds']} s to start; "
            f"routes and Spark held {report['memory_bytes'] / 1048576:,.0f} MiB"
        ),
    ]
    verdict = f"lost {report['lost']}, duplicated {report['duplicated']}, out of order {report['out_of_order']}"
    return Group(proof, "", *lines, Text(verdict, style="bold green" if clean else "bold red"))
