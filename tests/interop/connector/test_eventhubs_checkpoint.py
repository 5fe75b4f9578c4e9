"""Checkpoints in a container of Azure Blob Storage: ours and those of the vendor's SDK are one; on Azurite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore
from azure.storage.blob import ContainerClient

from harness.server.azurite_server import KEY, AzuriteServer, azurite
from isthmus.connectors.checkpoint.blob_store import BlobStore
from isthmus.connectors.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    GroupKey,
    open_store,
)
from isthmus.connectors.eventhubs.option import read_hub

KEY_OF_GROUP = GroupKey("ns-1", "Contoso.servicebus.windows.net", "Flights", "$Default")
VENDORS = {
    "fully_qualified_namespace": KEY_OF_GROUP.host,
    "eventhub_name": KEY_OF_GROUP.hub,
    "consumer_group": KEY_OF_GROUP.group,
}


@pytest.fixture(name="server", scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzuriteServer]:
    with azurite(tmp_path_factory.mktemp("azurite")) as running:
        yield running


@pytest.fixture(name="store")
def _store(
    server: AzuriteServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[CheckpointStore]:
    name = f"c{abs(hash(request.node.name))}"
    with ContainerClient.from_connection_string(server.connection_string, name, api_version="2019-07-07") as container:
        container.create_container()
    monkeypatch.setenv("STORAGE", server.connection_string)
    address = f"{server.url('blob')}/{name}"
    options = {"connection": "env:HUB", "checkpoint_container": address, "checkpoint_connection": "env:STORAGE"}
    made = open_store(read_hub(options))
    yield made
    made.close()


def vendors(server: AzuriteServer, request: pytest.FixtureRequest) -> BlobCheckpointStore:
    name = f"c{abs(hash(request.node.name))}"
    return BlobCheckpointStore.from_connection_string(server.connection_string, name)


def test_the_vendors_consumers_continue_from_ours_and_we_from_theirs(
    server: AzuriteServer, store: CheckpointStore, request: pytest.FixtureRequest
) -> None:
    assert store.load(KEY_OF_GROUP) == {}
    store.write(KEY_OF_GROUP, {0: Checkpoint(41, "0:4096:41"), 3: Checkpoint(7, "77")})
    with vendors(server, request) as theirs:
        reported = {each["partition_id"]: each for each in theirs.list_checkpoints(*VENDORS.values())}
        assert {name: (each["sequence_number"], each["offset"]) for name, each in reported.items()} == {
            "0": (41, "0:4096:41"),
            "3": (7, "77"),
        }
        theirs.update_checkpoint({**VENDORS, "partition_id": "3", "sequence_number": 90, "offset": "900"})
    # What another one has written since is not replaced by less, though ours was written last.
    store.write(KEY_OF_GROUP, {0: Checkpoint(42, "x"), 3: Checkpoint(8, "88")})
    assert store.load(KEY_OF_GROUP) == {0: Checkpoint(42, "x"), 3: Checkpoint(90, "900")}
    # Nor is what was read, though no note was written since: a reader that was shut out writes late.
    store.write(KEY_OF_GROUP, {3: Checkpoint(89, "890")})
    assert store.load(KEY_OF_GROUP)[3] == Checkpoint(90, "900")
    store.write(KEY_OF_GROUP, {3: Checkpoint(1, "1", begins_again=True)})
    assert store.load(KEY_OF_GROUP)[3] == Checkpoint(1, "1")


def test_a_container_that_is_not_there_is_reported_and_no_key_with_it(
    server: AzuriteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE", server.connection_string)
    store = BlobStore(server.url("blob"), "missing", "env:STORAGE")
    for ask in (lambda: store.load(KEY_OF_GROUP), lambda: store.write(KEY_OF_GROUP, {0: Checkpoint(1)})):
        with pytest.raises(CheckpointError, match="missing") as refused:
            ask()
        assert "does not exist" in str(refused.value)
        assert KEY not in str(refused.value)
    store.close()
