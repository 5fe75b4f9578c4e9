"""File systems whose locks do not apply on other machines."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from isthmus.connectors.servicebus.batch import store as store_module
from isthmus.connectors.servicebus.batch.error import BatchLockError
from isthmus.connectors.servicebus.batch.file_system import lock_fault, mount_table
from isthmus.connectors.servicebus.batch.store import BatchStore

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:40 / /mnt/good rw,relatime shared:2 - nfs4 host:/x rw,vers=4.2,local_lock=none
41 22 0:41 / /mnt/bad rw,relatime shared:3 - nfs host:/y rw,vers=3,local_lock=all
42 41 0:42 / /mnt/bad/inside rw,relatime - ext4 /dev/sdb rw
43 22 0:43 / /mnt/with\\040space rw,relatime - nfs host:/z rw,nolock
44 22 0:44 / /mnt/share rw,relatime - cifs //host/s rw,nobrl
45 22 0:45 / /mnt/twice rw,relatime - nfs host:/z rw,nolock
46 45 0:46 / /mnt/twice rw,relatime - tmpfs tmpfs rw
broken line
"""


@pytest.mark.parametrize(
    ("folder", "fault"),
    [
        ("/home/x", ""),
        ("/mnt/good/spool", ""),
        ("/mnt/bad/spool", "'/mnt/bad' is mounted as nfs with local_lock=all"),
        ("/mnt/badly", ""),
        ("/mnt/bad/inside/spool", ""),
        ("/mnt/with space/spool", "'/mnt/with space' is mounted as nfs with nolock"),
        ("/mnt/share", "'/mnt/share' is mounted as cifs with nobrl"),
        ("/mnt/twice/spool", ""),
    ],
)
def test_the_mount_that_holds_the_folder_decides(folder: str, fault: str) -> None:
    assert lock_fault(Path(folder), MOUNTS) == fault
    assert lock_fault(Path(folder), "") == ""


def test_the_table_of_this_machine_is_read(tmp_path: Path) -> None:
    assert " - " in mount_table()
    assert lock_fault(tmp_path.resolve(), mount_table()) == ""


def test_a_spool_whose_locks_count_on_one_machine_only_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"1 0 0:1 / {tmp_path.resolve()} rw - nfs host:/x rw,nolock\n"
    monkeypatch.setattr(store_module, "mount_table", lambda: table)
    with pytest.raises(BatchLockError, match=r"is mounted as nfs with nolock.*Set option spool"):
        BatchStore(tmp_path / "query").claim()


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(BatchLockError, match=r"No locks available.*Set option spool"):
        BatchStore(tmp_path / "query").claim()
