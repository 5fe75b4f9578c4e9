"""What the test of the first hour is built on: a shell in a terminal of 80 columns, and the steps of a page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.check.page_step import Command, File, steps
from harness.check.terminal import Terminal, screen_lines

PAGE = """\
# A page

Install it:

    pip install it
    it --version

Write `a.yaml` and `b.yaml`:

```yaml
key: value
```

- a list

    that goes on with an indented line

```text
shown only
```

```sh
export NAME='x'
```
"""


def test_the_steps_of_a_page(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    assert steps(tmp_path / "page.md") == [
        Command(("pip install it", "it --version")),
        File("b.yaml", "key: value\n"),
        Command(("export NAME='x'",)),
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one\r\ntwo\r\n", ["one", "two"]),
        ("10 %\r20 %\rdone\r\n", ["done"]),
        ("a\r\nb\r\n\x1b[2A\x1b[2Kc\r\n\x1b[2Kd\r\n", ["c", "d"]),
        ("\x1b[31mred\x1b[0m\x1b[?25l", ["red"]),
        ("loading\r\x1b[2Kready\r\n", ["ready"]),
    ],
)
def test_what_was_drawn_over_is_shown_as_it_ended(text: str, lines: list[str]) -> None:
    assert screen_lines(text) == lines


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path, {"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    try:
        yield opened
    finally:
        opened.close()


def test_a_shell_keeps_its_state_and_shows_exit_codes(terminal: Terminal) -> None:
    assert terminal.run("export NAME=value; cd /") == (0, [])
    assert terminal.run('echo "$NAME in $PWD"; false') == (1, ["value in /"])
    assert terminal.run("stty size") == (0, ["40 80"])


def test_what_runs_is_waited_for_and_interrupted(terminal: Terminal) -> None:
    terminal.start("sh -c 'echo started; exec sleep 600'")
    terminal.wait_for("started", 30)
    terminal.interrupt()
    assert terminal.finish(30)[0] == 130
