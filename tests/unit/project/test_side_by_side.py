"""Every module that starts Spark is in one chain, and the lists name modules that are there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from harness.plugin.side_by_side import LONG, SPARK_CHAINS, position

ROOT = Path(__file__).parents[3]
CHAINED = [module for chain in SPARK_CHAINS.values() for module in chain]


def marked() -> set[str]:
    """Modules some tests of which are marked `spark`."""
    found = (ROOT / "tests").rglob("test_*.py")
    return {
        path.relative_to(ROOT).as_posix()
        for path in found
        if path != Path(__file__) and "pytest.mark.spark" in path.read_text(encoding="utf-8")
    }


def test_every_module_that_starts_spark_is_in_one_chain() -> None:
    assert [module for module, count in Counter(CHAINED).items() if count > 1] == []
    assert set(CHAINED) == marked()


def test_the_long_modules_are_there() -> None:
    assert [module for module in LONG if not (ROOT / module).is_file()] == []
    assert not set(LONG) & set(CHAINED)


def test_chains_come_first_and_what_is_not_named_keeps_its_order() -> None:
    nodes = [
        "tests/fault/namespace/test_fuzz.py::test_a",
        f"{LONG[0]}::test_b",
        "tests/unit/x.py::test_c",
        f"{CHAINED[0]}::test_d",
    ]
    assert sorted(nodes, key=position) == [nodes[3], nodes[1], nodes[0], nodes[2]]
