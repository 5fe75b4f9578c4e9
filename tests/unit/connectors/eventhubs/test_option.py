"""isthmus.connectors.eventhubs.option."""

from __future__ import annotations

import pytest

from isthmus.connectors.eventhubs.connector import CONNECTOR, dispositions_of
from isthmus.connectors.eventhubs.option import read_hub, read_source, read_target
from isthmus.errors import ConfigError

OPTIONS = {"connection": "env:HUB", "topic": "flights"}
SOURCE = OPTIONS | {"checkpoints": "/tmp/checkpoints"}


def test_defaults() -> None:
    source, target = read_source(SOURCE), read_target(OPTIONS)
    assert (source.group, source.start, source.owner_level, source.chosen) == ("$Default", "earliest", 0, None)
    assert (source.servicebus_options.connection, source.servicebus_options.entity) == ("env:HUB", "flights")
    assert target.partitioning == "key"
    assert read_hub({"connection": "env:HUB"}).topic == ""


def test_some_partitions() -> None:
    assert read_source(SOURCE | {"partitions": "0-2, 7"}).chosen == {0, 1, 2, 7}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"host": "contoso.servicebus.windows.net"}, "connection and host are both given"),
        ({"connection": ""}, "neither connection nor host is given"),
        ({"checkpoints": ""}, "neither checkpoints nor checkpoint_container is given"),
        ({"checkpoint_container": "https://a.blob.core.windows.net/c"}, "are both given"),
        ({"checkpoint_connection": "env:STORAGE"}, "needs a container"),
        ({"checkpoints": "", "checkpoint_container": "https://a.blob.core.windows.net/"}, "no address of a container"),
        ({"partitions": "3-1"}, "names no partitions"),
        ({"partitions": "all"}, "names no partitions"),
        ({"dead_letter_topic": "Flights"}, "is the event hub itself"),
        ({"owner_level": "-2"}, "owner_level"),
        ({"nothing": "1"}, "has no option"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changed: dict[str, str], text: str) -> None:
    """I1."""
    with pytest.raises(ConfigError, match=text):
        read_source(SOURCE | changed)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"origin": "ewr"}, "origin has no alias"),
        ({"policy": '{"ttl_ceiling_ms": 5}'}, "ttl_ceiling_ms cannot be kept"),
        ({"policy": "{"}, "policy"),
    ],
)
def test_what_a_target_cannot_be(changed: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read_target(OPTIONS | changed)


def test_a_connection_string_is_refused_and_not_repeated() -> None:
    """I2."""
    secret = "Endpoint=sb://x/;SharedAccessKeyName=n;SharedAccessKey=hunter2"
    with pytest.raises(ConfigError) as refused:
        read_source(SOURCE | {"connection": secret})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("user", ["", "key:hunter2@"])
def test_a_container_with_a_secret_is_refused_and_not_repeated(user: str) -> None:
    """I2: it would be in plans; and the signature would not be used."""
    container = f"https://{user}a.blob.core.windows.net/c" + ("" if user else "?sv=2021&sig=hunter2")
    with pytest.raises(ConfigError, match="write a key or a SAS into checkpoint_connection") as refused:
        read_source(OPTIONS | {"checkpoint_container": container})
    assert "hunter2" not in str(refused.value)


def test_only_with_a_hub_for_them_messages_are_set_aside() -> None:
    assert dispositions_of(SOURCE) == {"abandon"}
    assert dispositions_of(SOURCE | {"dead_letter_topic": "rejected"}) == {"abandon", "dead-letter"}
    assert CONNECTOR.capabilities.is_log
