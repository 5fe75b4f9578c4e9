"""Namespaces of the tests, each in a process forked from one that has imported what a namespace is made of.

A namespace imports for 0.6 s of processor time before it serves, and the tests start some five hundred. The process is one as before: it has a pid, can be
killed, and shares nothing with the tests. What is tested of the start itself (tests/unit/cli/namespace) starts a Python of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.reduction import DupFd
from typing import Any, BinaryIO

from isthmus.testing import namespace

__all__ = ["ForkedNamespace", "fork_namespaces"]

# `-c` and the command, as `isthmus.testing.namespace` starts a Python.
_BEFORE_THE_ARGUMENTS = 3
_IMPORTED = (
    "isthmus.cli.app",
    "isthmus.cli.namespace.serve",
    "isthmus.cli.message",
    "typer._adapters",
    "isthmus.broker.process",
    "uvloop",
)
_COMMAND = namespace._COMMAND
_context = get_context("forkserver")


class ForkedNamespace:
    """What `subprocess.Popen` is to `NamespaceProcess`.

    Args:
        command: an interpreter, `-c`, a command, and the arguments of `isthmus`.
        stdout: as for `Popen`; always a pipe.
        stderr: a file.
    """

    def __init__(self, command: Sequence[str], *, stdout: int, stderr: BinaryIO) -> None:
        assert stdout == subprocess.PIPE
        arguments = list(command[_BEFORE_THE_ARGUMENTS:])
        reading, writing = os.pipe()
        # A namespace that a test leaves running ends with the tests.
        self._process = _context.Process(
            target=_serve,
            args=(arguments, dict(os.environ), os.getcwd(), DupFd(writing), DupFd(stderr.fileno())),
            daemon=True,
        )
        try:
            self._process.start()
        finally:
            os.close(writing)
        self.stdout = open(reading, "rb", buffering=0)  # noqa: SIM115 - closed by its user, as that of Popen
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it at once."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not, in time.
        """
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("isthmus namespace serve", timeout or 0.0)
        return code


def fork_namespaces() -> None:
    """From now on namespaces of this process are forked."""
    _context.set_forkserver_preload([*_IMPORTED, __name__])
    namespace.Popen = _started  # type: ignore[misc, assignment]


def _started(command: Sequence[str], *, stdout: int, stderr: BinaryIO) -> Any:
    """A test may have a command of its own, which sets limits of the process before it serves: no fork has those."""
    if command[_BEFORE_THE_ARGUMENTS - 1] == _COMMAND:
        return ForkedNamespace(command, stdout=stdout, stderr=stderr)
    return subprocess.Popen(command, stdout=stdout, stderr=stderr)


def _serve(arguments: Sequence[str], environment: Mapping[str, str], folder: str, stdout: Any, stderr: Any) -> None:
    """The forked process."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, descriptor in ((1, stdout.detach()), (2, stderr.detach())):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
    sys.argv = ["isthmus", *arguments]
    from isthmus.cli.app import main

    main(arguments)
