"""The first hour of a user who has only the documentation: README, installation and tutorial, followed literally.

In an empty home folder, in terminals of 80 columns, with a copy of the project and nothing else: no cache, no git, no variable of
whoever runs this. What the terminals showed is written to docs/tutorial/transcript.md.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.check.page_step import File, steps
from harness.check.terminal import COLUMNS, Terminal

pytestmark = [pytest.mark.spark, pytest.mark.soak]

ROOT = Path(__file__).parents[3]
TUTORIAL = ROOT / "docs" / "tutorial" / "first-federation.md"
TRANSCRIPT = ROOT / "docs" / "tutorial" / "transcript.md"
MOST_BYTES = 150_000_000
MOST_SECONDS = 60
INSTALL_SECONDS = 1500
SERVE, RUN = "isthmus namespace serve", "isthmus run"
HEAD = """\
# A transcript of the tutorial

[The tutorial](first-federation.md), followed literally in an empty home folder and in terminals of 80 columns. Keys are left out. `make soak` writes this page.
"""


class User:
    """Follows pages in one home folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {
            "HOME": str(home),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PIP_PROGRESS_BAR": "off",
        }
        self.project = home / "isthmus"
        self.terminals: list[Terminal] = []
        self.reported: list[str] = []
        self.wide: list[str] = []

    def open(self, folder: Path) -> Terminal:
        terminal = Terminal(folder, self.environment)
        self.terminals.append(terminal)
        return terminal

    def note(self, title: str, command: str, lines: list[str]) -> None:
        """Keep what a terminal showed, without keys, places and lines that say nothing."""
        kept = [
            re.sub(r"SharedAccessKey=[^;\s]+", "SharedAccessKey=…", each.replace(str(self.home), "~")) for each in lines
        ]
        if command.startswith("isthmus"):
            # A sentence may be longer than the terminal; a row of a table, which has gaps, may not.
            self.wide += [
                each for each in kept if len(each) > COLUMNS and re.search(r"\S {2,}\S", each) and "=sb:" not in each
            ]
        self.reported += [f"({title})"] if title else []
        self.reported += [f"$ {command}", *kept, ""]

    def close(self) -> None:
        for terminal in reversed(self.terminals):
            terminal.close()


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    home = tmp_path / "home"
    home.mkdir()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (home / "isthmus" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, home / "isthmus" / name)
    found = User(home)
    try:
        yield found
    finally:
        found.close()


def test_isthmus_alone_is_small_and_serves(user: User) -> None:
    """README: `pip install .`, and a namespace on this machine."""
    terminal = user.open(user.project)
    terminal.run("python3 -m venv ~/alone")
    assert terminal.run(". ~/alone/bin/activate")[0] == 0
    began = time.monotonic()
    code, lines = terminal.run("pip install .", INSTALL_SECONDS)
    seconds = time.monotonic() - began
    assert code == 0, lines[-20:]
    size = sum(
        file.stat().st_size for file in (user.home / "alone").rglob("*") if file.is_file() and not file.is_symlink()
    )
    print(f"pip install . took {seconds:.0f} s and {size / 1e6:.0f} MB")
    assert size < MOST_BYTES
    assert seconds < MOST_SECONDS
    serving = user.open(user.project)
    serving.run(". ~/alone/bin/activate")
    serving.start("isthmus namespace serve --data ./ewr")
    serving.wait_for("Ctrl-C stops the namespace", 60)
    for command in (
        "isthmus entity create --data ./ewr orders",
        "isthmus send --data ./ewr orders first",
        "isthmus peek --data ./ewr orders",
        "isthmus receive --data ./ewr orders",
        "isthmus entity list --data ./ewr",
    ):
        code, lines = terminal.run(command)
        user.note("", command, lines)
        assert code == 0, (command, lines)
    assert user.wide == []
    serving.interrupt()
    assert serving.finish(30)[0] in {0, 130}


def test_the_tutorial_can_be_followed_literally(user: User) -> None:
    main = user.open(user.project)
    strings: dict[str, str] = {}
    running: list[Terminal] = []
    exports: list[str] = []
    for step in steps(TUTORIAL):
        if isinstance(step, File):
            (user.project / "tutorial" / step.name).write_text(step.text)
            user.reported += [f"({step.name} is written)", ""]
            continue
        for line in step.lines:
            if line.startswith((SERVE, RUN)):
                running.append(own := user.open(user.project))
                own.run(". .venv/bin/activate")
                own.run("cd tutorial")
                for export in exports:
                    own.run(export)
                own.start(line)
                if line.startswith(SERVE):
                    own.wait_for("Ctrl-C stops the namespace", 60)  # then the whole string is there
                    found = own.wait_for(r"connection string +(Endpoint=sb://127.0.0.1:(\d+)/;\S+)", 1)
                    strings[found[2]] = found[1]
                else:
                    for route in ("flights.ewr.jfk", "flights.jfk.ewr"):
                        own.wait_for(rf"{re.escape(route)} +waiting", 180)
                user.note("in a terminal of its own", line, own.lines())
                continue
            command = re.sub(r"'Endpoint=sb://127.0.0.1:(\d+)/;…'", lambda each: f"'{strings[each[1]]}'", line)
            exports += [command] if command.startswith("export") else []
            code, lines = main.run(command, INSTALL_SECONDS if "pip install" in line else 120)
            user.note("", line, lines[-3:] if "pip install" in line else lines)
            assert code == 0, (line, lines[-30:])
    shown = "\n".join(user.reported)
    for expected in (
        "no fault",
        "isthmus.flights.jfk",
        "UA 1545 departs",
        "ewr/flights",
        "UA 1714 departs",
        "nothing lost",
    ):
        assert expected.lower() in shown.lower(), f"{expected!r} is not in:\n{shown}"
    for terminal in reversed(running):
        terminal.interrupt()
        code, lines = terminal.finish(90)
        assert code in {0, 130}, lines[-20:]
    assert user.wide == []
    TRANSCRIPT.write_text(f"{HEAD}\n```text\n{shown.rstrip()}\n```\n", encoding="utf-8")
