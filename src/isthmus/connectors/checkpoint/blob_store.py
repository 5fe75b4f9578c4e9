"""Checkpoints in a container of Azure Blob Storage, as the vendor's SDKs keep them.

What it is: for each partition an empty blob `namespace/hub/group/checkpoint/partition`, in lower case, whose metadata are `offset` and
`sequencenumber`, and our `createdms`, which the SDKs ignore. What it is not: ownership; our readers exclude others by their owner
level, and claim no partition in the container.
Specification: azure-eventhub-checkpointstoreblob, `BlobCheckpointStore`; Microsoft Learn, "Balance partition load across multiple
instances of your application", Checkpointing.

Invariants:
    I1. No writer replaces a checkpoint that it has not read: a blob is changed only if it is as it was read (`If-Match`).
    I2. No error contains a key of the account.
    I3. A checkpoint that was read is not replaced by an earlier one either, even if the blob has not changed since.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from isthmus.connectors.checkpoint.checkpoint import Checkpoint, CheckpointError, GroupKey
from isthmus.connectors.identity import shared_credential
from isthmus.connectors.secret import resolve, scrub
from isthmus.connectors.servicebus.plain_host import check_plain
from isthmus.connectors.storage_transport import storage_transport
from isthmus.extra import require
from isthmus.transport.credential import told_of_token

__all__ = ["BlobStore"]

_ATTEMPTS = 5
_TIMEOUT_SECONDS = 20
_RETRIES = 2
# The longest wait before a retry; the SDK's own first wait of 15 s is longer than a closing source has for its last checkpoint.
_RETRY_SECONDS = 1
# The version that storage emulators support too, and that the vendor's store requests.
_API_VERSION = "2019-07-07"
_NONE = Checkpoint(-1)


class BlobStore:
    """The store.

    Args:
        account: the account's address.
        container: the container's name.
        connection: reference to the account's connection string; empty: the identity is used.
        identity: as the option of this name.

    Raises:
        SecretError: the reference cannot be resolved.
        MissingExtraError: azure-storage-blob is not installed.
        PlainConnectionError: the connection to another machine would not be encrypted.
        CheckpointError: the connection string is invalid.
    """

    def __init__(self, account: str, container: str, connection: str, identity: str = "default") -> None:
        require("blob", "a container of checkpoints")
        from azure.core.exceptions import AzureError
        from azure.storage.blob import ContainerClient, LinearRetry

        logging.getLogger("azure.core.pipeline.policies.http_logging_policy").setLevel(logging.WARNING)
        parts = urlsplit(account)
        if parts.scheme == "http":
            check_plain(parts.hostname or "")
        self._container_path = f"{account}/{container}"
        self._error: type[Exception] = AzureError
        self._known: dict[str, tuple[str, Checkpoint]] = {}  # by blob: its ETag and its checkpoint
        settings: dict[str, Any] = {
            "api_version": _API_VERSION,
            "transport": storage_transport(account, _TIMEOUT_SECONDS, 1),
            "retry_policy": LinearRetry(0, _RETRIES, random_jitter_range=_RETRY_SECONDS),
        }
        # The emulator has the account's name in the path: account/container.
        name = container.rpartition("/")[2]
        try:
            if connection:
                text = resolve(connection).reveal()
                self._client = ContainerClient.from_connection_string(text, name, **settings)
            else:
                self._client = ContainerClient(account, name, credential=shared_credential(identity), **settings)
        except ValueError:
            raise CheckpointError(
                f"{self._container_path}: the value of checkpoint_connection is not a connection string of a storage account"
            ) from None

    def load(self, key: GroupKey) -> dict[int, Checkpoint]:
        """The checkpoints of a group by partition.

        Raises:
            CheckpointError: no answer, or a refusal.
        """
        found: dict[int, Checkpoint] = {}
        with self._errors_of():
            for blob in self._client.list_blobs(name_starts_with=f"{_folder(key)}/", include=["metadata"]):
                number = str(blob.name).rpartition("/")[2]
                checkpoint = _read(blob.metadata)
                if number.isdecimal() and checkpoint is not None:
                    found[int(number)] = checkpoint
                    self._known[str(blob.name)] = str(blob.etag), checkpoint
        return found

    def write(self, key: GroupKey, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Replaces checkpoints, by partition.

        Raises:
            CheckpointError: no answer, or a refusal.
        """
        with self._errors_of():
            for partition, checkpoint in checkpoints.items():
                self._write(f"{_folder(key)}/{partition}", checkpoint, key.created_ms)

    def close(self) -> None:
        """Closes connections."""
        with contextlib.suppress(Exception):
            self._client.close()

    def _write(self, name: str, checkpoint: Checkpoint, created_ms: int) -> None:
        from azure.core import MatchConditions
        from azure.core.exceptions import ResourceExistsError, ResourceModifiedError, ResourceNotFoundError

        metadata = {"offset": checkpoint.offset, "sequencenumber": str(checkpoint.sequence)}
        if created_ms:
            metadata["createdms"] = str(created_ms)
        blob = self._client.get_blob_client(name)
        for _ in range(_ATTEMPTS):
            etag, before = self._known.get(name, (None, _NONE))
            if before.stays(checkpoint, created_ms):
                return
            try:
                if etag is None:
                    # The blob is created with its metadata: `set_blob_metadata` cannot create one.
                    values = blob.upload_blob(b"", metadata=metadata, if_none_match="*")
                else:
                    values = blob.set_blob_metadata(metadata, etag=etag, match_condition=MatchConditions.IfNotModified)
            except (ResourceExistsError, ResourceModifiedError):
                properties = blob.get_blob_properties()
                found = _read(properties.metadata)
                self._known[name] = str(properties.etag), found if found is not None else _NONE
            except ResourceNotFoundError as error:
                if getattr(error, "error_code", "") == "ContainerNotFound":
                    raise
                self._known.pop(name, None)
            else:
                self._known[name] = str(values["etag"]), Checkpoint(checkpoint.sequence, created_ms=created_ms)
                return
        raise CheckpointError(
            f"{self._container_path}: other writers change {name} all the time; look for readers with the same group"
        )

    @contextlib.contextmanager
    def _errors_of(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise CheckpointError(f"checkpoints at {self._container_path}: {scrub(told_of_token(error))}") from None


def _folder(key: GroupKey) -> str:
    return f"{key.host}/{key.hub}/{key.group}/checkpoint".lower()


def _read(metadata: Mapping[str, Any] | None) -> Checkpoint | None:
    """A checkpoint of any of the vendor's SDKs, some of which write no sequence number, or no offset."""
    values = {name.lower(): str(value or "") for name, value in (metadata or {}).items()}
    try:
        sequence = int(values.get("sequencenumber") or -1)
    except ValueError:
        return None
    offset, created = values.get("offset", ""), values.get("createdms", "")
    created_ms = int(created) if created.isdecimal() else 0
    return Checkpoint(sequence, offset, created_ms=created_ms) if sequence >= 0 or offset else None
