"""The checks of a run before it starts anything."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from isthmus.connectors.spool.folder import SpoolError
from isthmus.errors import InvalidArgumentError
from isthmus.supervisor import run as run_module
from isthmus.supervisor.claim.claim import Holder
from isthmus.supervisor.claim.folder_lock import FolderInUseError, locked_folder
from isthmus.supervisor.run import RunOptions, TaskClaimedError, _decide, checkpoint_folder, route_checkpoints
from isthmus.supervisor.status import read_status
from isthmus.topology import read
from isthmus.topology.model import Route
from isthmus.topology.route import routes

KEY = ("flights", "ewr")


class Claims:
    """Shows one view of the claims after the other; the last stays."""

    def __init__(self, *views: dict[tuple[str, str], Holder | None]) -> None:
        self.views = list(views)

    def held_by_others(self) -> dict[tuple[str, str], Holder | None]:
        return self.views.pop(0) if len(self.views) > 1 else self.views[0]

    def decided(self) -> bool:
        return True


def decide(*views: dict[tuple[str, str], Holder | None]) -> None:
    claims: Any = Claims(*views)
    _decide(claims, threading.Event())


def test_i2_a_claim_without_a_name_is_waited_for_and_refused_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that locked it has not written its name yet: a run that begins, or one whose connection broke while it took it."""
    decide({KEY: None}, {KEY: None}, {})
    monkeypatch.setattr(run_module, "CLAIM_LOCK_MS", 100)
    monkeypatch.setattr(run_module, "DECIDE_SECONDS", 0.2)
    with pytest.raises(TaskClaimedError, match="another process"):
        decide({KEY: None})


def test_i5_a_second_run_in_one_state_folder_starts_nothing_and_gives_its_claims_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E.g. one with `--task flights` and one with `--task gates`, whose claims are not the same."""
    text = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\ntasks:\n"
    federation = read(f"{text}  flights: {{pattern: all-active, topic: flights, members: [ewr, jfk]}}\n")
    keeper = MagicMock()
    monkeypatch.setattr(run_module, "ClaimKeeper", lambda *_: MagicMock(start=lambda: keeper))
    for name in ("_check", "_decide", "FillWatch", "BacklogWatch"):
        monkeypatch.setattr(run_module, name, MagicMock())
    started = MagicMock(side_effect=AssertionError("Spark was started"))
    monkeypatch.setattr(run_module, "create_spark_session", started)
    with locked_folder(tmp_path), pytest.raises(FolderInUseError):
        run_module.run_federation(federation, RunOptions(tmp_path), threading.Event())
    keeper.close.assert_called_once()
    with pytest.raises(AssertionError, match="Spark was started"):
        run_module.run_federation(federation, RunOptions(tmp_path), threading.Event())


def test_a_run_is_alive_while_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\ntasks:\n"
    federation = read(f"{text}  flights: {{pattern: all-active, topic: flights, members: [ewr, jfk]}}\n")
    monkeypatch.setattr(run_module, "ClaimKeeper", MagicMock())
    for name in ("_check", "_decide", "FillWatch", "BacklogWatch"):
        monkeypatch.setattr(run_module, name, MagicMock())
    reported: list[dict[str, Any] | None] = []

    def start(*_: object, **__: object) -> None:
        reported.append(read_status(tmp_path))
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "create_spark_session", start)
    with pytest.raises(KeyboardInterrupt):
        run_module.run_federation(federation, RunOptions(tmp_path), threading.Event())
    [document] = reported
    assert document is not None
    assert (document["alive"], document["state"]) == (True, "starting")
    assert [route["state"] for route in document["routes"]] == ["pending: Spark is starting"] * 2


def test_a_spool_that_is_not_mounted_fails_its_route_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"isthmus: 1\nnamespaces:\n  ewr: {{connection: env:A}}\ntasks:\n  kept: {{pattern: archive, source: ewr, queue: a, table: {tmp_path}/t,"
    federation = read(f"{text} spool: {tmp_path}/spool}}\n")
    for name in ("ClaimKeeper", "_check", "_decide", "FillWatch", "BacklogWatch", "create_spark_session"):
        monkeypatch.setattr(run_module, name, MagicMock())
    monkeypatch.setattr(run_module, "open_shared_run", MagicMock())
    starter = MagicMock()
    monkeypatch.setattr(run_module, "ArchiveStarter", starter)
    starts: list[Callable[[Route], object]] = []

    def supervise(_: object, start: Callable[[Route], object], **__: object) -> MagicMock:
        starts.append(start)
        return MagicMock(conditions=list)

    monkeypatch.setattr(run_module, "Supervisor", supervise)
    (route,) = routes(federation)
    for new_spools in (False, False, True):
        run_module.run_federation(federation, RunOptions(tmp_path, new_spools=new_spools), threading.Event())
        if len(starts) == 2:
            with pytest.raises(SpoolError, match="is missing; is its file system not mounted"):
                starts[-1](route)
            continue
        starts[-1](route)
        shutil.rmtree(tmp_path / "spool")
    assert starter().start.call_count == 2


def test_a_state_folder_in_which_nothing_can_be_written_is_refused_before_any_claim_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\ntasks:\n"
    federation = read(f"{text}  flights: {{pattern: all-active, topic: flights, members: [ewr, jfk]}}\n")
    keeper = MagicMock(side_effect=AssertionError("a claim was asked for"))
    monkeypatch.setattr(run_module, "ClaimKeeper", keeper)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(InvalidArgumentError, match=r"state folder .* Permission denied; name another one with --state"):
        run_module.run_federation(federation, RunOptions(tmp_path / "state"), threading.Event())


@pytest.mark.parametrize(
    ("uri", "task", "folder"),
    [
        ("", "", "/state/checkpoints"),
        ("", "flights", "/state/checkpoints"),
        ("hdfs://namenode:8020/isthmus/", "", "hdfs://namenode:8020/isthmus/"),
        ("hdfs://namenode:8020/isthmus/", "flights", "hdfs://namenode:8020/isthmus/task-flights"),
        ("hdfs://namenode:8020/isthmus", "gates", "hdfs://namenode:8020/isthmus/task-gates"),
    ],
)
def test_runs_of_different_tasks_share_no_checkpoint_at_a_uri(uri: str, task: str, folder: str) -> None:
    assert checkpoint_folder(uri, RunOptions(Path("/state"), task)) == folder


@pytest.mark.parametrize("uri", ["", "hdfs://namenode:8020/isthmus"])
def test_a_run_of_one_task_continues_with_the_windows_of_a_run_of_all(uri: str) -> None:
    """Otherwise those that are open would wait in one checkpoint, while the other one's query takes what is behind them."""
    folders = {route_checkpoints(uri, RunOptions(Path("/state"), task)) for task in ("", "flights", "gates")}
    assert folders == {uri or "/state/checkpoints"}
