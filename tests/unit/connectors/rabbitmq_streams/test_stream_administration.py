"""isthmus.connectors.rabbitmq_streams.administration: the start of a group, without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.connectors.checkpoint.checkpoint import Checkpoint
from isthmus.connectors.checkpoint.folder_store import FolderStore
from isthmus.connectors.rabbitmq_streams import administration
from isthmus.connectors.rabbitmq_streams.administration import StreamAdministration
from isthmus.connectors.rabbitmq_streams.option import read_namespace
from isthmus.topology.planning.change import Change
from isthmus.topology.state import GroupState


@pytest.mark.parametrize(("start", "expected"), [("existing", Checkpoint(-1)), ("now", Checkpoint(4, "d"))])
def test_i1_what_a_stream_of_the_same_name_has_left_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, expected: Checkpoint
) -> None:
    """`apply` makes a group where there was no stream. With the checkpoint of the one before no run would read the new one."""
    options = {"host": "h", "username": "u", "password": "env:P", "checkpoints": str(tmp_path)}
    store, key = FolderStore(str(tmp_path)), read_namespace(options).key("", "orders", "g")
    store.write(key, {0: Checkpoint(500, "digest")})
    monkeypatch.setattr(StreamAdministration, "_exists", lambda *_: True)
    monkeypatch.setattr(administration, "last_of", lambda *_: (4, "d"))
    group = GroupState(name="g", start=start)
    change = Change(alias="a", action="create", kind="group", topic="orders", subscription="g", after=group)
    StreamAdministration(options).make(change)
    assert store.load(key) == {0: expected}
