"""What the daemon has imported when it forks."""

from __future__ import annotations

import json
import subprocess
import sys

from isthmus.replication.spark import worker_daemon

_LOOK = """
import json, os, sys, threading
files = sorted(os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}"))
import isthmus.replication.spark.worker_daemon
after = sorted(os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}"))
print(json.dumps({"modules": list(sys.modules), "threads": threading.active_count(), "opened": sorted(set(after) - set(files))}))
"""


def test_a_daemon_for_planning_imports_no_reader_and_no_sink() -> None:
    command = [sys.executable, "-c", _LOOK, "pyspark.sql.worker.create_data_source"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert set(worker_daemon.PLANNING) <= set(found["modules"])
    assert not {"isthmus.bridge.host.reader.reader", "isthmus.connectors.servicebus.port.connector"} & set(
        found["modules"]
    )
    assert found["opened"] == []


def test_workers_find_everything_imported_i1_i2() -> None:
    found = json.loads(subprocess.run([sys.executable, "-c", _LOOK], capture_output=True, check=True).stdout)
    assert set(worker_daemon.PRELOADED) <= set(found["modules"])
    # What a reader and a sink of the bridge, and Spark's own worker, load.
    assert {"isthmus.bridge.lease.lease", "isthmus.bridge.delivery.delivery", "pyarrow"} <= set(found["modules"])
    assert "pandas" not in found["modules"]
    assert found["threads"] == 1
    assert found["opened"] == []
