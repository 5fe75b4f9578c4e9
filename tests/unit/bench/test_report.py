from __future__ import annotations

import json
from pathlib import Path

from isthmus.bench.driver import route_of, split
from isthmus.bench.latency import gaps_ms, percentile, spark_usage
from isthmus.bench.process import Usage
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
        "lease_pause_ms": 640.5,
        "usual_gap_ms": 8.1,
        "cpu_cores": 0.5,
        "spark_shared_out_bytes": 700 * 2**20,
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
    assert "| 0.5 | 700 | 400.0 | 700.0 | 640.5 | 8.1 |" in text
    assert json.loads(page.with_suffix(".json").read_text())["bridge"]["ratio_to_shovel"] == 5.0


def test_a_peer_that_failed_is_reported_beside_the_others(tmp_path: Path) -> None:
    peers = {**RESULTS["bridge"]["peers"], "sdk-loop": {"failed": "MessageLockLostError: it"}}
    page = write_report(tmp_path, {**RESULTS, "bridge": {**RESULTS["bridge"], "peers": peers}})
    assert "| sdk-loop | failed: MessageLockLostError: it |" in page.read_text()
    assert peer_ratios(30000, peers) == {"ratio_to_shovel": 3.0}


def test_percentile() -> None:
    values = [float(value) for value in range(100)]
    assert [percentile(values, share) for share in (0.5, 0.99, 0.999)] == [50.0, 99.0, 99.0]
    assert percentile([], 0.5) == 0.0


def test_the_pause_is_the_longest_gap() -> None:
    assert [round(gap) for gap in gaps_ms([1.0, 1.002, 1.004, 1.5, 1.503])] == [2, 2, 3, 496]
    assert gaps_ms([1.0]) == []


def test_memory_of_spark_leaves_out_the_namespaces() -> None:
    usage = {
        "source": Usage(resident_bytes=900, shared_out_bytes=900, processes=1),
        "jvm": Usage(resident_bytes=400, shared_out_bytes=390, processes=1),
        "workers": Usage(resident_bytes=300, shared_out_bytes=110, processes=3),
    }
    found = spark_usage(usage, {"source": 1}, 2)
    assert (found["spark_shared_out_bytes"], found["spark_processes"]) == (500, 4)
    assert found["spark_shared_out_bytes_per_route"] == 250
    assert found["spark_processes_per_route"] == 2.0


def test_options_go_to_the_session_or_to_the_source() -> None:
    assert split(["spark.x=1", "lease_seconds=5"]) == ({"spark.x": "1"}, {"lease_seconds": "5"})


def test_a_measured_route_names_its_origin() -> None:
    spec = route_of("bench-3")
    assert (spec.source.options["entity"], spec.target.options["entity"]) == ("bench-3", "bench-3")
    assert spec.target.options["origin"] == "a/bench-3"
