"""isthmus.connectors.rabbitmq_streams.option, and the kind `rabbitmq-streams` in a federation file."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.amqp.section import encode_message
from isthmus.bridge import registry
from isthmus.connectors.checkpoint.checkpoint import Checkpoint
from isthmus.connectors.checkpoint.folder_store import FolderStore
from isthmus.connectors.kafka.mapping.record import DEAD_LETTER_PLACE, DEAD_LETTER_REASON
from isthmus.connectors.rabbitmq_streams.connector import dispositions_of
from isthmus.connectors.rabbitmq_streams.option import read_namespace, read_source
from isthmus.errors import ConfigError, InvalidArgumentError
from isthmus.replication.verification.audit.log_audit import placed
from isthmus.replication.verification.identity import Identity
from isthmus.topology import read

SETTINGS = {"host": "rabbit-1", "username": "isthmus", "password": "env:P", "checkpoints": "/checkpoints"}
FILE = """
isthmus: 1
namespaces:
  lga: {kind: rabbitmq-streams, host: rabbit-1, username: isthmus, password: env:P, checkpoints: checkpoints}
  ewr: {connection: env:EWR}
tasks:
  orders: %s
"""


def test_what_is_set_aside_is_named_as_at_every_log() -> None:
    """`isthmus verify` finds it by that name: without partition and offset it would count as consumed."""
    origin = read_source(SETTINGS | {"topic": "orders", "dead_letter_topic": "aside"}).origin_of(10)
    headers = {DEAD_LETTER_PLACE: origin, DEAD_LETTER_REASON: "ValidationFailed"}
    message = encode_message(application_properties=headers)
    assert placed(message, "orders") == Identity(10, "", "", 10, "ValidationFailed")


def test_checkpoints_of_streams_whose_names_differ_in_case_are_different_ones() -> None:
    namespace = read_namespace(SETTINGS)
    keys = [namespace.key("rabbit@a", name, "g") for name in ("orders", "Orders")]
    assert keys[0].identity != keys[1].identity
    assert namespace.key("rabbit@a", "orders", "g") == keys[0]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"checkpoints": ""}, "no folder for checkpoints"),
        ({"dead_letter_topic": "orders"}, "is the stream itself"),
        ({"topic": "x" * 256}, "more than 255 bytes"),
        ({"username": ""}, "PLAIN needs username"),
    ],
)
def test_options_at_odds_are_refused(changed: dict[str, str], text: str) -> None:
    """I1."""
    with pytest.raises(ConfigError, match=text):
        read_source(SETTINGS | {"topic": "orders"} | changed)


def test_a_message_is_set_aside_only_where_there_is_a_place_for_it() -> None:
    reported = SETTINGS | {"topic": "orders"}
    assert dispositions_of(reported) == {"abandon"}
    assert dispositions_of(reported | {"dead_letter_topic": "dead"}) == {"abandon", "dead-letter"}


def test_it_is_read_only() -> None:
    with pytest.raises(InvalidArgumentError, match="read only"):
        registry.connector("rabbitmq-streams").targets()


def test_a_task_reads_a_stream() -> None:
    found = read(FILE % "{pattern: stream-to-queue, source: lga, stream: orders, target: ewr, queue: orders}", "f.yaml")
    assert list(found.tasks) == ["orders"]


@pytest.mark.parametrize(
    "task",
    [
        "{pattern: queue-to-stream, source: ewr, queue: orders, target: lga, stream: orders}",
        "{pattern: copy, topic: orders, source: ewr, target: lga}",
        "{pattern: copy, topic: orders, target_topic: others, source: lga, target: lga}",
    ],
)
def test_no_task_writes_to_one(task: str) -> None:
    with pytest.raises(ConfigError, match="of kind rabbitmq-streams, which cannot be a target"):
        read(FILE % task, "f.yaml")


@pytest.mark.parametrize("name", ["s" * 255, "ü" * 127, "𝔰" * 63, "." * 255])
def test_checkpoints_of_any_name_have_a_file(tmp_path: Path, name: str) -> None:
    """A name of a file has 255 bytes at most."""
    store = FolderStore(str(tmp_path))
    namespace = read_namespace(SETTINGS)
    keys = [
        namespace.key(cluster, stream, name) for cluster in (name, f"{name}2") for stream in (name, f"{name[:-1]}x")
    ]
    for number, key in enumerate(keys):
        store.write(key, {0: Checkpoint(number)})
    assert [store.load(key)[0].sequence for key in keys] == [0, 1, 2, 3]


def test_the_place_of_a_checkpoint_stays() -> None:
    assert read_namespace(SETTINGS).key("rabbit@h", "orders", "isthmus")[:4] == (
        "rabbit@h 913b28e005a61a6c",
        "rabbit@h",
        "orders",
        "isthmus",
    )
