"""A run of all measurements as a page for the record.

What it is: the table and the JSON that `isthmus bench all` writes into a folder; one pair of files per run, named by the
day, the version and, where there is one, the commit. It compares nothing across runs.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["peer_ratios", "write_report"]

_MIB = 2**20
_LATENCY_HEAD = (
    "| p50 ms | p99 ms | p99.9 ms | longest ms | messages | processor cores | Spark's MiB | idle p50 ms | idle longest ms "
    "| pause at a lease's end ms | usual gap ms |"
)


def peer_ratios(rate: float, peers: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """`ratio_to_<peer>` for every product that was measured: the rate of isthmus divided by its rate."""
    return {
        f"ratio_to_{name.replace('-', '_')}": round(rate / peer["messages_per_second"], 2)
        for name, peer in peers.items()
        if peer.get("messages_per_second")
    }


def write_report(folder: Path, results: Mapping[str, Any]) -> Path:
    """Write the results of one run.

    Args:
        folder: created if absent.
        results: `machine`, and by name the results of `namespace`, `bridge` and `latency`.

    Returns:
        The page's path; the JSON is in the same folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    name = f"{now:%Y-%m-%d-%H%M}-{_commit() or results['machine']['isthmus']}"
    page = folder / f"{name}.md"
    page.write_text(_page(results, now), encoding="utf-8")
    (folder / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return page


def _commit() -> str:
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, timeout=10
        )
    except OSError:
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _page(results: Mapping[str, Any], now: datetime) -> str:
    lines = [f"# Benchmark of {now:%Y-%m-%d %H:%M} UTC", ""]
    lines += ["Durable messages with a body of 1 KiB; everything, the load included, on one machine.", ""]
    lines += ["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in results["machine"].items()), ""]
    lines += (
        _bridge_lines(results["bridge"]) + _namespace_lines(results["namespace"]) + _latency_lines(results["latency"])
    )
    return "\n".join(lines)


def _bridge_lines(bridge: Mapping[str, Any]) -> list[str]:
    lines = ["## Bridge: queue to queue", ""]
    lines += [
        "| | messages/s | CPU µs/message | resident MiB | isthmus is … times as fast |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines.append(_bridge_row("isthmus, through Spark", bridge, ""))
    for name, peer in bridge.get("peers", {}).items():
        missing = next((key for key in ("absent", "failed") if key in peer), None)
        if missing is not None:
            lines.append(f"| {name} | {missing}: {peer[missing]} | | | |")
        else:
            lines.append(
                _bridge_row(
                    f"{name} {peer.get('version', '')}".strip(), peer, str(bridge["ratio_to_" + name.replace("-", "_")])
                )
            )
    split = ", ".join(f"{name} {value:.1f}" for name, value in bridge["cpu_us_by_process"].items())
    return [*lines, "", f"CPU µs/message of isthmus by process: {split}.", ""]


def _bridge_row(name: str, result: Mapping[str, Any], ratio: str) -> str:
    memory = f"{result['resident_bytes'] / _MIB:,.0f}" if result.get("resident_bytes") else ""
    return (
        f"| {name} | {result['messages_per_second']:,.0f} | {result['cpu_us_per_message']:.1f} | {memory} | {ratio} |"
    )


def _namespace_lines(namespace: Mapping[str, Any]) -> list[str]:
    parts = (
        ("ingest, batches of 100", "ingest_batches"),
        ("ingest, single sends, 1,000 in flight", "ingest_singles"),
        ("receive and complete", "receive_and_complete"),
        ("receive and complete, without a restart before", "receive_and_complete_at_once"),
        ("ingest in sessions, batches of 100", "session_ingest_batches"),
        ("receive and complete in sessions", "session_receive_and_complete"),
    )
    lines = ["## One namespace", ""]
    lines += [
        "| | messages/s | CPU µs/message | client's CPU µs/message | resident MiB |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for title, key in parts:
        part = namespace.get(key)
        if not part:
            continue  # too few messages were measured to distribute them over sessions
        lines.append(
            f"| {title} | {part['messages_per_second']:,.0f} | {part['cpu_us_per_message']:.1f} "
            f"| {part['client_cpu_us_per_message']:.1f} | {part['resident_bytes'] / _MIB:,.0f} |"
        )
    lines += ["", f"Ready with {namespace['messages']:,} messages waiting: after a clean stop in "]
    lines[-1] += (
        f"{namespace['ready_seconds_after_stop']} s, after kill -9 in {namespace['ready_seconds_after_kill']} s."
    )
    return [*lines, ""]


def _latency_lines(latency: Mapping[str, Any]) -> list[str]:
    row = (
        f"| {latency['p50_ms']} | {latency['p99_ms']} | {latency['p99_9_ms']} | {latency['max_ms']} "
        f"| {latency['messages']:,} | {latency['cpu_cores']} | {latency['spark_shared_out_bytes'] / _MIB:,.0f} "
        f"| {latency['idle_p50_ms']} | {latency['idle_max_ms']} | {latency['lease_pause_ms']} | {latency['usual_gap_ms']} |"
    )
    return [
        f"## Latency through Spark at {latency['rate']:g} messages/s",
        "",
        _LATENCY_HEAD,
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        row,
        "",
    ]
