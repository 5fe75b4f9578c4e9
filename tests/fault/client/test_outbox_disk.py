"""An outbox on a disk that fills up, or turns read-only: what `send_messages` returned for is kept, and nothing else."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

from isthmus.client import DurableSender, OutboxFullError
from isthmus.client.outbox.backlog import waiting
from isthmus.client.outbox.folder import Folder
from isthmus.errors import StoreError

NOWHERE = "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=a;SharedAccessKey=Yg==;UseDevelopmentEmulator=true"


def mount(*arguments: str) -> None:
    if subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system takes rights that this user lacks")


@pytest.fixture
def disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        mount("-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", folder)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=False)


def message(number: int) -> ServiceBusMessage:
    return ServiceBusMessage(b"%d " % number + b"x" * 3000, message_id=str(number))


def kept(box: Path) -> list[int]:
    found = (payload for _, record, index in waiting(Folder(box)) for payload in record.payloads[index:])
    return [int(payload.partition(b"\x00Su")[2][5:].partition(b" ")[0]) for payload in found]


def test_a_full_disk_is_reported_and_sending_continues_when_there_is_room(disk: Path) -> None:
    balloon = disk / "balloon"
    balloon.write_bytes(b"x" * 500_000)
    taken: list[int] = []
    refusals: list[str] = []
    with DurableSender(NOWHERE, "orders", disk / "box", drain=False, min_free_bytes=0) as sender:
        for number in range(700):
            try:
                sender.send_messages(message(number))
                taken.append(number)
            except StoreError as error:
                refusals.append(str(error))
                balloon.unlink(missing_ok=True)
    assert len(refusals) > 10
    assert all("No space left" in each or "bytes free" in each for each in refusals)
    assert kept(disk / "box") == taken
    assert not list((disk / "box" / "quarantine").iterdir())


def test_the_limit_is_reported_before_the_disk_is_full(disk: Path) -> None:
    with DurableSender(NOWHERE, "orders", disk / "box", drain=False, min_free_bytes=1 << 20) as sender:
        for number in range(200):
            sender.send_messages(message(number))
        with pytest.raises(OutboxFullError, match="min_free_bytes"):
            sender.send_messages([message(number) for number in range(200, 350)])
    status = os.statvfs(disk)
    assert status.f_bavail * status.f_frsize >= 1 << 20


def test_a_disk_that_turns_read_only_is_reported(disk: Path) -> None:
    with DurableSender(NOWHERE, "orders", disk / "box", drain=False, min_free_bytes=0) as sender:
        sender.send_messages(message(1))
    mount("-o", "remount,ro", str(disk))
    with pytest.raises(StoreError):
        DurableSender(NOWHERE, "orders", disk / "box", drain=False, min_free_bytes=0)
    mount("-o", "remount,rw", str(disk))
    with DurableSender(NOWHERE, "orders", disk / "box", drain=False, min_free_bytes=0) as sender:
        sender.send_messages(message(2))
    assert kept(disk / "box") == [1, 2]
