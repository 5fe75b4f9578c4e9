"""A Spark standalone cluster whose machines share nothing but the network: each node is a user of this machine, with folders of its own.

What it is: users made for the length of a test, a Python and a Java that they may run, one master and some worker daemons, and
ways to kill what runs on a node. What it is not: containers; the nodes share the network, /proc and the software, which they cannot write.

It needs root, to make users and to start processes as them.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

import isthmus
from isthmus.testing.port import free_port

__all__ = ["BARE", "Cluster", "Node", "missing", "wait_until"]

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
WAIT_SECONDS = 300.0
BARE = "ISTHMUS_TEST_BARE"
"""Set in the environment of a node: its Python has everything but isthmus."""
_ABOUT = """
import json, pyspark
from isthmus.replication.spark.java import find_java
print(json.dumps({"spark_home": pyspark.__path__[0], "java": find_java().environment}))
"""
_LEFT_OUT = shutil.ignore_patterns("site-packages", "test", "tests", "idlelib", "config-*")

# One process may have several clusters, each with users of its own.
_NUMBERS = itertools.count(1)


def missing() -> str:
    """What this machine lacks for a cluster; empty where nothing."""
    if os.geteuid() != 0:
        return "root, which makes the users that the nodes run as"
    return " and ".join(name for name in ("useradd", "userdel") if shutil.which(name) is None)


def wait_until(holds: Callable[[], bool], reported: Callable[[], object] = str) -> None:
    """Waits for minutes, on a slow machine; fails with what `reported` gives."""
    limit = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < limit, reported()
        time.sleep(0.1)


class Node:
    """A machine of the cluster: a user, its folder, a worker daemon while it runs.

    Args:
        folder: its own; no other user may enter.
        user: whom its processes belong to.
    """

    def __init__(self, folder: Path, user: str) -> None:
        self.folder = folder
        self.user = user
        subprocess.run(
            ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", str(folder), user], check=True
        )
        for each in (folder, folder / "tmp"):
            each.mkdir(mode=0o700)
            shutil.chown(each, user, user)
        self.uid = folder.stat().st_uid
        self.log = folder.parent / f"{folder.name}.log"
        self._daemon: subprocess.Popen[bytes] | None = None

    def environment(self, added: Mapping[str, str]) -> dict[str, str]:
        """Of its processes; nothing of this process's."""
        own = {"PATH": os.defpath, "HOME": str(self.folder), "TMPDIR": str(self.folder / "tmp"), "LANG": "C.UTF-8"}
        return own | {"SPARK_LOCAL_DIRS": str(self.folder / "tmp"), "SPARK_DAEMON_MEMORY": "192m"} | dict(added)

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start its daemon."""
        with self.log.open("wb") as out:
            self._daemon = subprocess.Popen(
                command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=self.environment(environment),
                cwd=self.folder, user=self.user, group=self.user, extra_groups=[], umask=0o077, start_new_session=True,
            )  # fmt: skip

    def processes(self) -> list[psutil.Process]:
        """All that runs there."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.uids().real == self.uid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def python_workers(self) -> list[psutil.Process]:
        """The Python processes that read and write there."""
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                parent = process.parent()
                if _is_daemon(process.cmdline()) and parent is not None and _is_daemon(parent.cmdline()):
                    found.append(process)
        return found

    def kill(self) -> None:
        """Everything there is killed at once, as at a power failure of a machine."""
        while running := self.processes():
            for process in running:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(running, 5)
        if self._daemon is not None:
            self._daemon.wait()

    def remove(self) -> None:
        """Ends it, and removes the user."""
        self.kill()
        subprocess.run(["userdel", self.user], check=False, capture_output=True)

    def text(self) -> str:
        """What its daemon wrote, and the standard error of its executors."""
        files = [self.log, *sorted(self.folder.glob("work/*/*/stderr"))]
        return "\n".join(f"--- {file}\n{file.read_text(errors='replace')}" for file in files if file.exists())


def _is_daemon(command_line: Sequence[str]) -> bool:
    return "isthmus.replication.spark.worker_daemon" in command_line


class Cluster:
    """A master and its nodes.

    Args:
        environment: what is set up on every node beside Spark, as references to secrets need it.
        nodes: how many.
        cores: of each.

    Attributes:
        url: of the master.
        python: the interpreter of the nodes.
        folder: readable for all nodes, writable for none.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, *, nodes: int = 2, cores: int = 4) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="isthmus-cluster-"))
        self.folder.chmod(0o755)
        self.url = ""
        self.environment = dict(environment or {})
        self.python = self.folder / "software" / "python3"
        self.nodes: list[Node] = []
        self._spark: dict[str, str] = {}
        self._cores = cores
        self._count = nodes
        self._master: Node | None = None

    def open(self) -> Self:
        """Start it."""
        _install(self.python)
        self._master = self._node("master")
        self.nodes = [self._node(f"node{number}") for number in range(1, self._count + 1)]
        self._spark = self._ask(self.nodes[0])
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._daemon(self._master, MASTER, "--port", str(port))
        master = self._master
        wait_until(lambda: "I have been elected leader" in master.text(), master.text)
        for node in self.nodes:
            self.start(node)
        for node in self.nodes:
            self.wait_registered(node)
        return self

    def start(self, node: Node) -> None:
        """Start a node's worker daemon; does not wait."""
        work = ["--work-dir", str(node.folder / "work"), "--memory", "2g", "--cores", str(self._cores), "--port", "0"]
        self._daemon(node, WORKER, *work, self.url)

    @staticmethod
    def wait_registered(node: Node) -> None:
        """Wait until the master knows a node."""
        wait_until(lambda: "Successfully registered with master" in node.text(), node.text)

    def settings(self) -> dict[str, str]:
        """The settings of Spark that a run needs there."""
        return {"spark.pyspark.python": str(self.python), "spark.executor.memory": "512m"}

    def close(self) -> None:
        """End it, and remove the users and their folders."""
        for node in [*self.nodes, self._master]:
            if node is not None:
                node.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.open()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _node(self, name: str) -> Node:
        return Node(self.folder / name, f"isthmus-{os.getpid()}-{next(_NUMBERS)}-{name}")

    def _ask(self, node: Node) -> dict[str, str]:
        """Where Spark and Java are, as a node's own Python reports it."""
        asked = subprocess.run(
            [str(self.python), "-c", _ABOUT], capture_output=True, text=True, check=False, cwd=node.folder,
            env=node.environment({}), user=node.user, group=node.user, extra_groups=[],
        )  # fmt: skip
        assert asked.returncode == 0, f"user {node.user} cannot run isthmus: {asked.stderr}"
        reported = json.loads(asked.stdout)
        return {**reported["java"], "SPARK_HOME": reported["spark_home"]}

    def _daemon(self, node: Node, name: str, *arguments: str) -> None:
        command = [f"{self._spark['SPARK_HOME']}/bin/spark-class", name, "--host", "127.0.0.1", "--webui-port", "0"]
        temporary = f"-Djava.io.tmpdir={node.folder / 'tmp'}"
        environment = {
            **self.environment,
            **self._spark,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": temporary,
        }
        node.start([*command, *arguments], environment)


# ---- the software of the nodes


def _install(python: Path) -> None:
    """Makes `python` an interpreter with isthmus that every user may run, of what this process runs.

    What all users may read is used where it is; what they may not, as an interpreter in the home of root, is linked or copied.
    """
    folder = python.parent
    folder.mkdir(mode=0o755)
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(Path(isthmus.__file__).parents[1])}
    paths = [_readable(Path(path), folder / f"packages{number}") for number, path in enumerate(sorted(packages))]
    bare = [path for path in paths if not (path / "isthmus").is_dir()]
    exported: dict[str, str] = {}
    real = Path(os.path.realpath(sys.executable))
    base = Path(sys.base_prefix)
    if not (_may_all_read(real) and _may_all_read(base / "lib")):
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        shutil.copytree(base / "lib" / version, folder / "lib" / version, ignore=_LEFT_OUT, copy_function=_link)
        for library in base.glob("lib/libpython*.so*"):
            _link(str(library), str(folder / "lib" / library.name))
        (folder / "bin").mkdir()
        real = Path(_link(str(real), str(folder / "bin" / real.name)))
        exported |= {"PYTHONHOME": str(folder), "LD_LIBRARY_PATH": str(folder / "lib")}
    lines = [f'export {name}="{value}"' for name, value in exported.items()]
    choice = [
        f'paths="{_joined(paths)}"',
        f'[ -z "${BARE}" ] || paths="{_joined(bare)}"',
        'export PYTHONPATH="$paths:$PYTHONPATH"',
    ]
    python.write_text("\n".join(["#!/bin/sh", *choice, *lines, f'exec {shlex.quote(str(real))} "$@"', ""]))
    python.chmod(0o755)


def _readable(path: Path, instead: Path) -> Path:
    if _may_all_read(path):
        return path
    shutil.copytree(path, instead, copy_function=_link, symlinks=True)
    return instead


def _joined(paths: Sequence[Path]) -> str:
    return ":".join(map(str, paths))


def _may_all_read(path: Path) -> bool:
    path = path.resolve()
    return all(each.stat().st_mode & stat.S_IXOTH for each in (path, *path.parents))


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
    return target
