from __future__ import annotations

import json
from pathlib import Path

from isthmus.bench.latency import percentile
from isthmus.bench.report import peer_ratios, write_report

PART = {
    "messages_per_second": 50000.0,
    "cpu_us_per_message": 9.0,
    "client_cpu_us_per_message": 8.0,
    "resident_bytes": 2**27,
}
RESULTS = {
    "machine": {"processor": "x", "isthmus": "0.1.0"},
    "namespace": {
        "messages": 1000,
        "ingest_batches": PART,
        "ingest_singles": PART,
        "receive_and_complete": PART,
        "receive_and_complete_at_once": PART,
        "session_ingest_batches": {},
        "session_receive_and_complete": PART,
        "ready_seconds_after_stop": 0.5,
        "ready_seconds_after_kill": 0.7,
    },
    "bridge": {
        **PART,
        "cpu_us_by_process": {"source": 3.0, "jvm": 7.5},
        "peers": {
            "shovel": {"messages_per_second": 10000.0, "cpu_us_per_message": 90.0, "resident_bytes": 2**28},
            "sdk-loop": {"absent": "to install: it"},
        },
        "ratio_to_shovel": 5.0,
    },
    "latency": {
        "rate": 500,
        "p50_ms": 3.0,
        "p99_ms": 9.0,
        "p99_9_ms": 20.0,
        "max_ms": 30.0,
        "messages": 30000,
        "lease_changes": 3,
        "cpu_cores": 0.5,
        "idle_p50_ms": 400.0,
        "idle_max_ms": 700.0,
    },
}


def test_absent_peers_have_no_ratio() -> None:
    peers = {"shovel": {"messages_per_second": 10000.0}, "sdk-loop": {"absent": "x"}}
    assert peer_ratios(30000, peers) == {"ratio_to_shovel": 3.0}


def test_the_page_names_peers_machine_and_ratios(tmp_path: Path) -> None:
    page = write_report(tmp_path / "results", RESULTS)
    text = page.read_text()
    assert "| shovel | 10,000 | 90.0 | 256 | 5.0 |" in text
    assert "| sdk-loop | absent: to install: it |" in text
    assert "source 3.0, jvm 7.5" in text
    assert json.loads(page.with_suffix(".json").read_text())["bridge"]["ratio_to_shovel"] == 5.0


def test_a_peer_that_failed_is_told_beside_the_others(tmp_path: Path) -> None:
    peers = {**RESULTS["bridge"]["peers"], "sdk-loop": {"failed": "MessageLockLostError: it"}}
    page = write_report(tmp_path, {**RESULTS, "bridge": {**RESULTS["bridge"], "peers": peers}})
    assert "| sdk-loop | failed: MessageLockLostError: it |" in page.read_text()
    assert peer_ratios(30000, peers) == {"ratio_to_shovel": 3.0}


def test_percentile() -> None:
    values = [float(value) for value in range(100)]
    assert [percentile(values, share) for share in (0.5, 0.99, 0.999)] == [50.0, 99.0, 99.0]
    assert percentile([], 0.5) == 0.0
