"""A shell in a pseudo-terminal of 80 columns, as a user sees it.

The screen is emulated as far as shells, pip and rich use it: carriage return, cursor up, erase line. What a command has drawn
several times is in the transcript once, as it was at the end.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path

__all__ = ["COLUMNS", "Terminal", "screen_lines"]

COLUMNS, ROWS = 80, 40
_MARK = "\x1e"
_PROMPT = re.compile(_MARK + r"(\d+)" + _MARK)
_ESCAPE = re.compile(r"\x1b(?:\[([?\d;]*)([A-Za-z])|\][^\x07]*\x07|[()][A-Z0-9]|[=>])")


def _take_terminal() -> None:
    """In the child: the terminal is its own, and interrupts reach what it runs, also where the tests run in the background."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """An interactive bash.

    Args:
        folder: where it starts.
        environment: all variables that it has; a prompt is added.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        # The exit code of each command, between two characters that nothing else writes.
        # An activated environment puts its name into no prompt, which would come before what the next command writes.
        prompt = {
            "PS1": "",
            "PS2": "",
            "PROMPT_COMMAND": f"printf '{_MARK}%s{_MARK}' $?",
            "TERM": "xterm-256color",
            "VIRTUAL_ENV_DISABLE_PROMPT": "1",
        }
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env={**environment, **prompt},
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - the only way to give it the terminal
        )
        os.close(slave)
        self._master = master
        self._read = ""
        self._wait_prompt(30)
        self._write("stty -echo\n")
        self._wait_prompt(30)

    def run(self, command: str, seconds: float = 120) -> tuple[int, list[str]]:
        """Runs a command to its end; its exit code, and its lines."""
        self.start(command)
        return self.finish(seconds)

    def start(self, command: str) -> None:
        """Enters a command, and does not wait."""
        self._read = ""
        self._write(command + "\n")

    def finish(self, seconds: float) -> tuple[int, list[str]]:
        """Waits for the end of what was started."""
        code, text = self._wait_prompt(seconds)
        return code, screen_lines(text)

    def wait_for(self, pattern: str, seconds: float) -> re.Match[str]:
        """Waits until what was started has written something."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, plain(self._read))):
            self._receive(deadline, f"{pattern!r} did not come")
        return found

    def lines(self) -> list[str]:
        """The contents of the screen since the last start."""
        while select.select([self._master], [], [], 0.2)[0]:
            self._read += self._chunk()
        return screen_lines(self._read)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._write("\x03")

    def close(self) -> None:
        """Closes the terminal: what runs in it gets SIGHUP, and SIGKILL after a while."""
        os.close(self._master)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _write(self, text: str) -> None:
        os.write(self._master, text.encode())

    def _wait_prompt(self, seconds: float) -> tuple[int, str]:
        deadline = time.monotonic() + seconds
        while not (found := _PROMPT.search(self._read)):
            self._receive(deadline, "the command did not end")
        text, self._read = self._read[: found.start()], self._read[found.end() :]
        return int(found[1]), text

    def _receive(self, deadline: float, what: str) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self._master], [], [], left)[0]:
            raise AssertionError(f"{what} in time; the terminal shows:\n" + "\n".join(screen_lines(self._read)[-40:]))
        self._read += self._chunk()

    def _chunk(self) -> str:
        try:
            return os.read(self._master, 65536).decode("utf-8", "replace")
        except OSError as error:  # the shell has ended
            raise AssertionError("the shell has ended:\n" + "\n".join(screen_lines(self._read)[-40:])) from error


def plain(text: str) -> str:
    """Text without the sequences that move or colour."""
    return _ESCAPE.sub("", text).replace("\r", "")


def screen_lines(text: str) -> list[str]:
    """The lines that a terminal without end shows after some output; a line is as long as it was written."""
    lines: list[list[str]] = [[]]
    row = column = 0
    at = 0
    while at < len(text):
        if text[at] == "\x1b" and (found := _ESCAPE.match(text, at)):
            at = found.end()
            numbers, what = found[1] or "", found[2]
            count = int(numbers) if numbers.isdecimal() else 1
            if what == "A":
                row = max(0, row - count)
            elif what == "B":
                row += count
            elif what == "K" and row < len(lines):
                lines[row] = [] if numbers == "2" else lines[row][:column]
            continue
        character = text[at]
        at += 1
        if character == "\n":
            row, column = row + 1, 0
        elif character == "\r":
            column = 0
        elif character.isprintable():
            lines += [[] for _ in range(row + 1 - len(lines))]
            lines[row] += [" "] * (column + 1 - len(lines[row]))
            lines[row][column] = character
            column += 1
        lines += [[] for _ in range(row + 1 - len(lines))]
    shown = ["".join(line).rstrip() for line in lines]
    while shown and not shown[-1]:
        shown.pop()
    return shown
