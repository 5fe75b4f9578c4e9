"""A real RabbitMQ for the length of a test: the machine's own, or Debian's packages unpacked into `.cache` without installing them.

One node with the plugins `rabbitmq_management` and others that a test asks for, and its own Erlang port mapper; both are children of this
process. Where there is neither, the tests are passed over, but not in CI.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from isthmus.testing.port import free_ports

__all__ = ["PASSWORD", "USER", "RabbitServer", "rabbit_server"]

USER, PASSWORD = "isthmus", "hunter2-of-rabbit"
ROOT = Path(__file__).parents[3]
CACHE = ROOT / ".cache" / "interop"
START_SECONDS = 120.0
STOP_SECONDS = 30.0
LOG_CHARACTERS = 4000
_HOME = Path("usr/lib/rabbitmq/bin")
_ERLANG = Path("usr/lib/erlang/bin")
_PACKAGES = (
    "rabbitmq-server",
    "erlang-base",
    *(
        f"erlang-{each}"
        for each in "asn1 crypto eldap inets mnesia os-mon parsetools public-key runtime-tools ssl syntax-tools tools xmerl".split()
    ),
    "libsctp1",
    "libtinfo6",
)
# Answers `NAME` with how many messages a queue has, ready and unacknowledged, as the queue itself counts; below 0: unknown.
_COUNTER = """
N = list_to_atom(hd(init:get_plain_arguments())),
C = fun(classic, Q) -> case rpc:call(N, rabbit_amqqueue, info, [Q, [messages_ready, messages_unacknowledged]]) of
    [{_, X}, {_, Y}] when is_integer(X), is_integer(Y) -> X + Y; _ -> -2 end;
  (quorum, Q) -> P = rpc:call(N, amqqueue, get_pid, [Q]),
    case rpc:call(N, ra, consistent_query, [P, fun rabbit_fifo:query_messages_total/1]) of {ok, X, _} when is_integer(X) -> X; _ -> -2 end end,
F = fun(G) -> case io:get_line("") of eof -> init:stop(); L ->
  R = case rpc:call(N, rabbit_amqqueue, lookup, [{resource, <<"/">>, queue, list_to_binary(string:trim(L))}]) of
    {ok, Q} -> case rpc:call(N, amqqueue, get_type, [Q]) of rabbit_quorum_queue -> C(quorum, Q); _ -> C(classic, Q) end; _ -> -1 end,
  io:format("~b~n", [R]), G(G) end end, F(F).
"""


def _missing(text: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


def _programs() -> tuple[Path, Path, dict[str, str]]:
    """The folders of RabbitMQ's scripts and of Erlang's programs, and the environment that they need."""
    installed = shutil.which("erl")
    if installed and (Path("/") / _HOME / "rabbitmq-server").exists():
        return Path("/") / _HOME, Path(installed).parent, {}
    folder = CACHE / "rabbitmq"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "rabbitmq.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".installed").exists():
            _unpack(folder)
    libraries = os.pathsep.join(
        str(each) for each in (*folder.glob("usr/lib/*-linux-gnu*"), *folder.glob("lib/*-linux-gnu*"))
    )
    environment = {"ERL_ROOTDIR": str(folder / "usr/lib/erlang"), "LD_LIBRARY_PATH": libraries}
    return folder / _HOME, folder / _ERLANG, environment


def _unpack(folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        _missing("no RabbitMQ here: apt-get install rabbitmq-server")
    folder.mkdir(parents=True, exist_ok=True)
    for package in _PACKAGES:
        subprocess.run(["apt-get", "download", package], cwd=folder, check=False, capture_output=True)
    for file in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", file.name, "."], cwd=folder, check=True)
        file.unlink()
    for script in ("erl", "start", "start_erl"):
        path = folder / _ERLANG / script
        if path.exists():
            text = path.read_text(errors="replace").replace("/usr/lib/erlang", str(folder / "usr/lib/erlang"))
            path.write_text(text)
    if not (folder / _HOME / "rabbitmq-server").exists() or not (folder / _ERLANG / "erl").exists():
        _missing("no RabbitMQ here, and none to be had by apt-get download: apt-get install rabbitmq-server")
    (folder / ".installed").touch()


class RabbitServer:
    """A node.

    Args:
        folder: of its data.
        plugins: beside the management.
        settings: lines of rabbitmq.conf.

    Attributes:
        port: of AMQP.
        management_port: of the HTTP API.
        tls_port: of AMQP with TLS, where `settings` configure a certificate.
    """

    def __init__(self, folder: Path, plugins: Sequence[str] = (), settings: Sequence[str] = ()) -> None:
        self.folder = folder
        self.port, self.management_port, self.tls_port, self._distribution_port, self._mapper_port = free_ports(5)
        self.name = f"isthmus_{os.getpid()}_{self.port}@localhost"
        self._scripts, erlang, extra = _programs()
        self._process: subprocess.Popen[bytes] | None = None
        self._counter: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        cookie = folder / ".erlang.cookie"
        cookie.write_text("isthmustest")
        cookie.chmod(0o600)
        (folder / "plugins").write_text(f"[{','.join(('rabbitmq_management', *plugins))}].\n")
        (folder / "empty.conf").write_text("")
        lines = (
            f"listeners.tcp.default = 127.0.0.1:{self.port}",
            f"management.tcp.port = {self.management_port}",
            "management.tcp.ip = 127.0.0.1",
            f"default_user = {USER}",
            f"default_pass = {PASSWORD}",
            "loopback_users = none",
            "vm_memory_high_watermark.absolute = 2GB",
            "disk_free_limit.absolute = 50MB",
            "collect_statistics_interval = 1000",
            "log.file.level = error",
            *(each.replace("{tls_port}", str(self.tls_port)) for each in settings),
        )
        (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        self.environment = {
            "PATH": f"{erlang}{os.pathsep}{os.environ.get('PATH', '/usr/bin:/bin')}",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._mapper_port),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "empty.conf"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced"),
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            # One scheduler, which does not spin: the tests share few cores.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
            # Makes the script replace itself by the virtual machine, so that the process we started is the node.
            "RUNNING_UNDER_SYSTEMD": "true",
            **extra,
        }
        self._mapper = subprocess.Popen(
            [
                str(erlang / "epmd") if (erlang / "epmd").exists() else "epmd",
                "-port",
                str(self._mapper_port),
                "-address",
                "127.0.0.1",
            ],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    # ---- its life

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [str(self._scripts / "rabbitmq-server")],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        limit = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "output").read_text()[-2000:]
            assert time.monotonic() < limit, "RabbitMQ does not answer"
            time.sleep(0.1)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as probe:
            probe.settimeout(5)
            probe.sendall(b"AMQP\0\0\x09\x01")
            if probe.recv(1) != b"\1":
                return False
            with suppress(AssertionError):
                self.call("GET", "overview")
                return True
        return False

    @property
    def process_id(self) -> int:
        """Of the node."""
        assert self._process is not None
        return self._process.pid

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Ends it, and what it needed."""
        self.stop(signal.SIGKILL)
        for each in (self._counter, self._mapper):
            if each is not None:
                each.kill()
                each.wait()
        if self._counter is not None:
            for stream in (self._counter.stdin, self._counter.stdout):
                assert stream is not None
                with suppress(OSError):
                    stream.close()

    # ---- its administration

    def control(self, *arguments: str) -> None:
        """Runs `rabbitmqctl`."""
        command = [str(self._scripts / "rabbitmqctl"), "--node", self.name, *arguments]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=START_SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr + done.stdout

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """A call of the HTTP API."""
        connection = HTTPConnection("127.0.0.1", self.management_port, timeout=30)
        try:
            token = b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
            connection.request(method, f"/api/{path}", None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status < 300, f"{method} {path}: {answer.status} {text[:300]!r}"
            return json.loads(text) if text else None
        finally:
            connection.close()

    def queue(self, name: str, kind: str = "classic", host: str = "/", **arguments: Any) -> str:
        """Makes a durable queue; `arguments` with `_` for `-`."""
        given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        self.call(
            "PUT",
            f"queues/{quote(host, '')}/{quote(name, '')}",
            {"durable": True, "arguments": {"x-queue-type": kind, **given}},
        )
        return name

    def messages(self, name: str) -> int:
        """How many messages a queue of the first virtual host has, unacknowledged ones included; below 0 where it is unknown."""
        with self._lock:
            for _ in range(2):
                counter = self._counting()
                assert counter.stdin is not None
                assert counter.stdout is not None
                with suppress(OSError):
                    counter.stdin.write(f"{name}\n")
                    counter.stdin.flush()
                    line = counter.stdout.readline()
                    if line:
                        return int(line)
                counter.kill()
                counter.wait()
                self._counter = None
            return -1

    def state(self) -> str:
        """Its state, for the text of a failed test: virtual hosts, queues, alarms, and the end of its log."""
        reported: list[object] = []
        for path in (
            "vhosts?columns=name,cluster_state",
            "queues?columns=vhost,name,state,messages_ready,messages_unacknowledged,consumers",
            "connections?columns=vhost,state,send_pend,recv_oct",
            "nodes?columns=mem_alarm,disk_free_alarm,running",
        ):
            try:
                reported.append(self.call("GET", path))
            except (OSError, AssertionError, ValueError, HTTPException) as error:
                reported.append(f"{path}: {type(error).__name__}: {error}")
        logs = [each.read_text(errors="replace")[-LOG_CHARACTERS:] for each in (self.folder / "log").glob("*.log")]
        return "\n".join(map(str, (*reported, *logs)))

    def _counting(self) -> subprocess.Popen[str]:
        if self._counter is None:
            name = f"count_{os.getpid()}_{self.port}@localhost"
            code = " ".join(_COUNTER.split())
            arguments = ["-noinput", "-noshell", "-sname", name, "-setcookie", "isthmustest", "-eval", code]
            self._counter = subprocess.Popen(
                ["erl", *[each for each in arguments if each != "-noinput"], "-extra", self.name],
                env=self.environment,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._counter


@contextmanager
def rabbit_server(folder: Path, plugins: Sequence[str] = (), settings: Sequence[str] = ()) -> Iterator[RabbitServer]:
    """A node that answers."""
    server = RabbitServer(folder / "rabbitmq", plugins, settings)
    try:
        server.start()
        yield server
    finally:
        server.close()
