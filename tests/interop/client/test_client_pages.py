"""The examples of the pages on the client library, run as they are written there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.testing.namespace import NamespaceProcess, namespace

DOCS = Path(__file__).parents[3] / "docs" / "how-to"
CONFIG = "queues: {orders: {}}"
LOGS = {"outlive-a-failure.md"}  # a namespace fails there, which the SDK logs
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def regions() -> Iterator[tuple[NamespaceProcess, NamespaceProcess]]:
    with namespace(config=CONFIG) as west, namespace(config=CONFIG) as east:
        yield west, east


@pytest.mark.parametrize(
    ("page", "number", "printed"),
    [
        ("survive-a-region-outage.md", 0, "('primary',) primary"),
        ("survive-a-region-outage.md", 1, "('primary', 'secondary') ()"),
        ("survive-a-region-outage.md", 2, "('primary',)"),
        ("send-durably.md", 0, ""),
        ("send-durably.md", 1, ""),
        ("outlive-a-failure.md", 0, "('secondary',) secondary True"),
    ],
)
def test_an_example_of_a_page(
    regions: tuple[NamespaceProcess, NamespaceProcess], tmp_path: Path, page: str, number: int, printed: str
) -> None:
    blocks = BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    west, east = regions
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", blocks[number]],
        cwd=tmp_path,
        env={
            "PRIMARY": west.connection_string,
            "SECONDARY": east.connection_string,
            "PRIMARY_HOST": f"localhost:{west.ports['amqp']}",
            "CLIENT_OPTIONS": '{"use_tls": false}',
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == printed
    assert page in LOGS or ran.stderr == ""


def test_the_pages_have_no_example_that_is_not_run() -> None:
    assert len(BLOCK.findall((DOCS / "survive-a-region-outage.md").read_text(encoding="utf-8"))) == 3
    assert len(BLOCK.findall((DOCS / "outlive-a-failure.md").read_text(encoding="utf-8"))) == 1
    # The third is run by test_postgresql_outbox.py.
    assert len(BLOCK.findall((DOCS / "send-durably.md").read_text(encoding="utf-8"))) == 3
