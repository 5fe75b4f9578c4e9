"""A disk that answers with an input/output error, and files that are removed while a namespace runs: sends and reads
are refused with an error, nothing acknowledged is lost, and the namespace continues when the disk does.

strace makes the system calls of the running process fail.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness.client.fault_client import connected, look, make_message, works
from isthmus.errors import IsthmusError
from isthmus.testing.namespace import NamespaceProcess, NamespaceStartError, namespace
from isthmus.transport import Sender

CONFIG = "queues: {orders: {}, normal: {}}"


@pytest.fixture(scope="module")
def strace() -> str:
    found = shutil.which("strace")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("strace is missing: apt-get install strace")
        pytest.skip("strace is missing: apt-get install strace")
    return found


@contextmanager
def failing(
    strace: str, ns: NamespaceProcess, calls: str, paths: Sequence[Path] = (), error: str = "EIO"
) -> Iterator[None]:
    """System calls of the namespace, of these files only if any are named, fail."""
    chosen = [word for path in paths for word in ("-P", str(path))]
    command = [strace, "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={calls}:error={error}",
               *chosen, "-p", str(ns.pid)]  # fmt: skip
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 20
    while f"TracerPid:\t{tracer.pid}\n" not in Path(f"/proc/{ns.pid}/status").read_text():
        if tracer.poll() is not None or time.monotonic() > limit:
            tracer.kill()
            pytest.skip("strace cannot attach to the namespace")
        time.sleep(0.02)
    try:
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(20)


def send(ns: NamespaceProcess, name: str) -> str:
    """Send one message; the refusal, empty where it was accepted."""
    with connected(ns, "orders") as client:
        sender = Sender(client, "orders").wait_ready()
        try:
            sender.send_all([make_message(name.encode())])
        except IsthmusError as error:
            return str(error) or repr(error)
    return ""


def names(ns: NamespaceProcess) -> list[str]:
    with connected(ns, "orders") as client:
        return [seen.body.decode() for seen in look(client, "orders")]


def attempt(ns: NamespaceProcess) -> tuple[list[str], str]:
    """What can be read, or why nothing can."""
    try:
        return names(ns), ""
    except IsthmusError as error:
        return [], str(error)


def wait_until_it_takes(ns: NamespaceProcess, name: str) -> None:
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        with suppress(IsthmusError):
            if not send(ns, name):
                return
        time.sleep(0.2)
    raise AssertionError(f"it takes no messages though the disk is back: {ns.log()[-1000:]}")


# What a file system that was made read-only refuses, beside writing to its files.
_CHANGES = "fdatasync,fsync,ftruncate,fallocate,rename,renameat,renameat2,unlink,unlinkat,mkdir,link"


@pytest.mark.parametrize(
    ("calls", "error"), [("fdatasync,fsync", "EIO"), ("write", "EIO"), ("write", "EROFS"), (_CHANGES, "EROFS")]
)
def test_a_device_that_takes_nothing_refuses_sends_and_loses_nothing(
    strace: str, calls: str, error: str, tmp_path: Path
) -> None:
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        acknowledged = [f"before-{n}" for n in range(20)]
        for name in acknowledged:
            assert not send(ns, name)
        # Writes go to sockets as well.
        paths = list((ns.data / "store").glob("*.log")) if calls == "write" else ()
        with failing(strace, ns, calls, paths, error):
            refused = [f"during-{n}" for n in range(3)]
            reported = [send(ns, name) for name in refused]
        acknowledged += [name for name, refusal in zip(refused, reported, strict=True) if not refusal]
        assert any(reported)
        assert all("\n" not in refusal and "Traceback" not in refusal for refusal in reported)
        wait_until_it_takes(ns, "after")
        works(ns, "normal")
        for _ in range(2):
            found = names(ns)
            assert set(acknowledged) | {"after"} <= set(found) <= {*acknowledged, *refused, "after"}
            assert len(found) - found.count("after") == len(set(found) - {"after"})
            ns.kill()
            ns.start()
        assert "Traceback" not in ns.log(), ns.log()


def test_a_device_that_gives_nothing_is_reported_and_comes_back(strace: str, tmp_path: Path) -> None:
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        sent = [f"m{n}" for n in range(50)]
        with connected(ns, "orders") as client:
            Sender(client, "orders").wait_ready().send_all([make_message(name.encode()) for name in sent])
        ns.restart()  # they are in a table now
        with failing(strace, ns, "pread64", list((ns.data / "store").glob("*.sst"))):
            found, error = attempt(ns)
        assert found in ([], sent)  # all, from a cache, or nothing: never a part
        assert (found == sent) is not bool(error)
        assert "\n" not in error
        assert str(tmp_path) not in error
        limit = time.monotonic() + 30
        while time.monotonic() < limit:
            with suppress(IsthmusError):
                assert names(ns) == sent
                break
            time.sleep(0.2)
        assert names(ns) == sent
        wait_until_it_takes(ns, "after")
        assert "Traceback" not in ns.log(), ns.log()


@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_of_a_log_that_is_removed_nothing_acknowledged_is_lost(ending: str, tmp_path: Path) -> None:
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        sent = [f"before-{n}" for n in range(20)]
        assert not any(send(ns, name) for name in sent)
        for log in (ns.data / "store").glob("*.log"):
            log.unlink()
        assert names(ns) == sent
        sent += [f"after-{n}" for n in range(20)]
        assert not any(send(ns, name) for name in sent[20:])
        assert "was removed while it was in use" in ns.log()
        ns.kill() if ending == "kill" else ns.stop()
        ns.start()
        assert names(ns) == sent


def test_a_log_that_was_removed_before_a_kill_is_missed_at_the_start(tmp_path: Path) -> None:
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        assert not send(ns, "before")
        [log] = (ns.data / "store").glob("*.log")
        log.unlink()
        ns.kill()
        with pytest.raises(NamespaceStartError, match=rf"log {log.name} is missing.*Restore a back-up"):
            ns.start()
