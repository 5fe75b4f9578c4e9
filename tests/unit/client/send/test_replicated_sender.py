from __future__ import annotations

from pathlib import Path

from isthmus.client.send.replicated_sender import ReplicatedSender
from isthmus.client.send.replication import Side
from isthmus.client.send.role_state import RoleState

NOWHERE = "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"


def test_the_file_of_the_roles_has_the_last_swap_whichever_thread_writes_last(tmp_path: Path) -> None:
    with ReplicatedSender(NOWHERE, NOWHERE, "orders", "passive", state=tmp_path / "roles") as sender:
        first = sender._switch("secondary")
        second = sender._switch("primary")
        sender._save(second)
        sender._save(first)
        assert sender.active == "primary"
    assert RoleState(tmp_path / "roles").load() is Side.PRIMARY
