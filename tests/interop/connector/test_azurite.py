"""The Azurite of the tests keeps what it has answered over kills (azurite/durable.cjs), and does not read more at each start."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.queue import QueueClient

from harness.server.azurite_server import azurite

MESSAGES = 10
LONG_SECONDS = 3600


def test_what_was_answered_stays_after_kills(tmp_path: Path) -> None:
    with azurite(tmp_path) as server:
        kept, cleared, deleted = clients = [
            QueueClient.from_connection_string(server.connection_string, name)
            for name in ("kept", "cleared", "deleted")
        ]
        for client in clients:
            client.create_queue()
            for number in range(MESSAGES):
                client.send_message(str(number), time_to_live=-1)
        server.restart()
        expected = {str(number) for number in range(MESSAGES)}
        for each in kept.receive_messages(max_messages=3, visibility_timeout=LONG_SECONDS):
            kept.delete_message(each)
            expected.discard(each.content)
        cleared.clear_messages()
        deleted.delete_queue()
        server.restart()
        journals = [file.read_text() for file in tmp_path.glob("*.journal")]
        assert journals
        assert not any(journals), "what it read at this start it reads at the next again"
        assert cleared.get_queue_properties().approximate_message_count == 0
        with pytest.raises(ResourceNotFoundError):
            deleted.get_queue_properties()
        deleted.create_queue()
        assert deleted.get_queue_properties().approximate_message_count == 0
        assert {each.content for each in kept.receive_messages(messages_per_page=32)} == expected
        for client in clients:
            client.close()
