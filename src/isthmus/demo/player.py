"""A process of the demo that communicates by JSON lines.

What it is: starts `python -m MODULE`, sends it its input, and keeps its output. What it is not: the process itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from isthmus.errors import IsthmusError

__all__ = ["Player", "PlayerError"]


class PlayerError(IsthmusError):
    """A process of the demo ended too early; the text holds the end of its output."""

    code = "demo-process"


class Player:
    """One process.

    Args:
        name: its name in errors.
        command: the arguments after the Python interpreter.
        log: the file that takes its standard error.

    Attributes:
        output: all values that it has written; later ones replace earlier ones.
    """

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self.output: dict[str, Any] = {}
        self._log = log
        with log.open("ab") as errors:
            # A session of its own: Ctrl-C goes to the demo, which ends its processes in order.
            self._process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        self._changed = threading.Condition()
        self._is_over = False  # all of its output has been read; the reading thread ends a little later
        self._reader = threading.Thread(target=self._read, name=f"read-{name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def say(self, **values: Any) -> None:
        """Send it one JSON object on one line.

        Raises:
            PlayerError: it has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(values) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # A BrokenPipeError would mean to the command line that the reader of its own output has closed, and it would end silently.
            raise PlayerError(f"{self.name} has ended: {self._tail()}") from None

    def wait_for(self, key: str, timeout_seconds: float) -> Any:
        """The value that it writes under `key`; blocks until it has.

        Raises:
            PlayerError: it ended without one, or the time is over.
        """
        with self._changed:
            self._changed.wait_for(lambda: key in self.output or self._is_over, timeout_seconds)
        if key not in self.output:
            raise PlayerError(f"{self.name} did not write '{key}': {self._tail()}")
        return self.output[key]

    def check(self) -> None:
        """Check that it has not failed.

        Raises:
            PlayerError: it has.
        """
        code = self._process.poll()
        if code:
            raise PlayerError(f"{self.name} ended with exit code {code}: {self._tail()}")

    def interrupt(self) -> None:
        """Ask it to end, as Ctrl-C does."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def join(self, timeout_seconds: float) -> int:
        """Wait for its end; kills it when the time is over. Its exit code."""
        try:
            code = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._reader.join(5.0)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # input that it did not read before its end
                    stream.close()
        return code

    def _tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return " | ".join(lines[-5:]) or "it wrote nothing"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                values = json.loads(line)
            except ValueError:
                continue
            with self._changed:
                self.output |= values
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
