"""The switch of a forced fail-over, made before the federation file is read as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.pairing.failover.forced import switch_at_once
from isthmus.pairing.state.state import Fence, PairState, Phase
from isthmus.pairing.state.state_file import StateFile

STATE = PairState(pair="contoso", active="ewr", standby="jfk", changed_at=1.0)
FILE = """\
isthmus: 1
namespaces: {ewr: {connection: env:EWR}, jfk: {connection: env:JFK}}
pairs:
  contoso: {primary: ewr, secondary: jfk}
"""


def written(folder: Path, text: str = FILE, state: PairState | None = STATE) -> Path:
    file = folder / "isthmus.yaml"
    file.write_text(text)
    if state is not None:
        StateFile(folder, "contoso").save(state)
    return file


def test_i1_the_standby_member_of_the_declared_pair_leads(tmp_path: Path) -> None:
    found = switch_at_once(written(tmp_path), "contoso", tmp_path)
    assert found is not None
    assert (found.active, found.leads_to, found.epoch, found.phase) == ("jfk", "jfk", 2, Phase.STEADY)
    assert found.fence_of("ewr") is Fence.PENDING
    assert StateFile(tmp_path, "contoso").load() == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "- a",
        "pairs: {}",
        "pairs: {contoso: jfk}",
        "pairs: {contoso: {primary: ewr}}",
        "pairs: {contoso: {primary: ewr, secondary: 7}}",
        FILE.replace("secondary: jfk", "secondary: lga"),
        "!!python/object/apply:os.system [false]",
        "[" * 5000,
    ],
)
def test_i1_a_file_that_declares_something_else_switches_nothing(tmp_path: Path, text: str) -> None:
    assert switch_at_once(written(tmp_path, text), "contoso", tmp_path) is None
    assert StateFile(tmp_path, "contoso").load() == STATE


def test_i1_without_a_file_or_a_state_nothing_is_switched(tmp_path: Path) -> None:
    assert switch_at_once(written(tmp_path, state=None), "contoso", tmp_path) is None
    StateFile(tmp_path, "contoso").save(STATE)
    assert switch_at_once(tmp_path / "other.yaml", "contoso", tmp_path) is None
    StateFile(tmp_path, "contoso").path.write_text("{}")
    assert switch_at_once(tmp_path / "isthmus.yaml", "contoso", tmp_path) is None


def test_i2_a_fault_elsewhere_in_the_file_delays_nothing(tmp_path: Path) -> None:
    found = switch_at_once(written(tmp_path, FILE + "tasks: {orders: {pattern: unknown}}\n"), "contoso", tmp_path)
    assert found is not None
    assert found.active == "jfk"


def test_one_that_names_its_member_leads_there_however_often_it_is_run(tmp_path: Path) -> None:
    """Where the output of the first was lost, without the name the second leads back."""
    file = written(tmp_path)
    first = switch_at_once(file, "contoso", tmp_path, "jfk")
    assert first is not None
    assert (first.active, first.epoch) == ("jfk", 2)
    assert switch_at_once(file, "contoso", tmp_path, "jfk") == first
    back = switch_at_once(file, "contoso", tmp_path, "ewr")
    assert back is not None
    assert back.target == "ewr", "an operator who means to go back names the other one"
    assert switch_at_once(file, "contoso", tmp_path, "lga") is None
