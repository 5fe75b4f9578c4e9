"""Bodies of large messages in three copies.

What it is: `isthmus.entities.BlobFiles` over three folders, with checksums beside each body, and the return of a folder
that failed. What it is not: a folder (`body_folder`), a body while it is written or read (`body_stream`), or the references to a
body (`isthmus.entities.storage.blob`). A little over 400 lines: the effects of a failure on writers, readers and the return are read
together.

Invariants:
    I1. `sync` returns when two folders have the body on disk.
    I2. A read returns the written bytes, or raises: a block with a wrong checksum is read from another folder.
    I3. A folder that missed a body or the end of one is marked stale in the others, on disk, before the operation continues:
        after a restart nothing is read from it before it is brought up to date.
    I4. A folder that missed a part of a body does not count as one that has it.
    I5. A body is removed from a folder only where the others could be asked whether they have it.
    I6. The last folder is still read, whatever it refuses, and the others return from it; if it takes no mark, a folder that
        is whole again replaces it.
    I7. A folder that serves again gives nothing under the numbers of bodies that began without it, until they are copied;
        after a kill in between, its remains of them have no checksums, and so give no wrong block.
    I8. A folder of another namespace is neither read nor written.
    I9. Where a start finds no folder that has every body, it removes none: two together have all. It serves once it has two, and both are
        marked as lacking until each has all bodies of the other.
    I10. A folder that serves again and lacks bodies is marked as lacking: a start treats it as stale, as long as
        another one may have them.
    I11. A folder whose files are missing is never copied to others, though it serves or was marked since; if it is
        the last one, one of the others replaces it, as at a start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from isthmus.entities.storage.blob_file import BlobReader, BlobWriter
from isthmus.errors import StoreError
from isthmus.store.blob import BlobFolder
from isthmus.store.private_folder import make_private
from isthmus.store.zone.body_folder import BLOCK_BYTES, BodyFolder, Sums, read_block
from isthmus.store.zone.body_stream import BodyReader, BodyWriter
from isthmus.store.zone.status import COPIES, MAJORITY
from isthmus.whole_file import sync_folder, write_file

__all__ = ["ZonedBlobs"]

_log = logging.getLogger(__name__)

_CHECK_SECONDS = 2.0
_MISSING = "its files are missing, or cannot be read"


class ZonedBlobs:
    """The bodies of one namespace.

    Args:
        folders: three, created if absent.
        set_name: of the three copies of the namespace's store.

    Raises:
        StoreError: fewer than two folders can be used.
    """

    def __init__(self, folders: Sequence[Path], set_name: str = "") -> None:
        self._folders = [BodyFolder(index, path, set_name) for index, path in enumerate(folders)]
        self._lock = threading.RLock()
        self._writing: set[int] = set()
        # Counted since the first check of the folder that is brought back.
        self._begun: set[int] = set()
        self._removed: set[int] = set()
        self._closed = threading.Event()
        self._woken = threading.Event()
        self._version = 0
        self._may_remove = True  # I9
        self._last_fault = ""  # of the last folder
        self._start()
        self._thread = threading.Thread(target=self._run, name="isthmus-zone-bodies", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        for folder in self._folders:
            try:
                folder.check_set()
            except StoreError as error:  # I8
                folder.reason = str(error)
        marks = {folder: mark for folder in self._folders if (mark := folder.read_mark()) is not None}
        is_divided = False  # no folder has every body
        if not marks:
            stale: list[int] = []
        else:
            self._version, stale, self._may_remove = max(marks.values())
            is_divided = not self._may_remove
            # A single one may be the stale one; the first start marks the folders one after the other.
            alone = next(iter(marks)) if len(marks) < MAJORITY else None
            if alone is not None and ((self._version, stale) != (1, []) or alone.bodies.numbers()):
                raise StoreError(
                    f"Of the {COPIES} copies of the bodies of large messages {MAJORITY} are needed, so that none is missing; only "
                    f"'{alone.path}' can be read. Bring another one back."
                )
            for folder in self._folders:
                if folder.reason:
                    continue
                if folder not in marks:
                    folder.reason = "there is no copy of the bodies of large messages"
                elif folder.index in stale or marks[folder].version < self._version:
                    folder.reason = "its bodies of large messages are stale"
            if not self._serving:
                # A kill between the marks of two folders: the newest mark names all folders that miss bodies, even its own.
                for folder in marks:
                    if folder.index not in stale:
                        folder.reason, self._may_remove = "", False
        self._version += 1
        is_marked = True
        lacking = [each.index for each in self._serving if is_divided]
        for folder in self._serving:
            folder.may_lack = is_divided
            try:
                folder.identify()
                folder.write_mark(self._version, [each.index for each in self._folders if each.reason], lacking)
            except (OSError, StoreError) as error:
                folder.reason, is_marked = str(error), False
        if not is_marked and self._serving:
            self._write_marks()  # the marks before it do not name it
        if not self._serving:
            raise StoreError("No copy of the bodies of large messages can be read: " + self._reasons())
        self._know_lacks(self._serving)
        for folder in sorted(self._folders, key=lambda each: each not in marks):
            if is_divided and folder not in marks:
                break  # it would be copied from one that lacks bodies
            if folder.reason and len(self._serving) < MAJORITY:
                self._try_return(folder)
        if is_divided and len(self._serving) < MAJORITY:
            raise StoreError(
                f"No copy of the bodies of large messages has all of them, and {MAJORITY} together do: "
                + self._reasons()
            )

    @staticmethod
    def _know_lacks(folders: Sequence[BodyFolder]) -> None:
        """Learn which bodies the folders marked as lacking before a start lack, from others that have them."""
        for folder in folders:
            others = [each for each in folders if each is not folder]
            if folder.may_lack and others:
                ended = {number for each in others for number in each.bodies.numbers() if each.sums(number) is not None}
                folder.lacks |= {number for number in ended if folder.sums(number) is None}
                folder.may_lack = False

    @property
    def _serving(self) -> list[BodyFolder]:
        return [folder for folder in self._folders if not folder.reason]

    def _reasons(self) -> str:
        return "; ".join(f"zone {each.index + 1}: {each.reason}" for each in self._folders if each.reason)

    def reasons(self) -> list[str]:
        """Why each folder is out of service; empty for one in service."""
        return [folder.reason for folder in self._folders]

    def close(self) -> None:
        """End the thread that checks the folders."""
        self._closed.set()
        self._woken.set()
        self._thread.join(_CHECK_SECONDS)

    # ---- folders that fail

    def _drop(self, folder: BodyFolder, reason: str) -> None:
        with self._lock:
            if folder.reason or self._closed.is_set():
                return
            is_last = self._serving == [folder]
            if not is_last or reason != self._last_fault:
                _log.error("zone %d takes no bodies of large messages: reason=%s", folder.index + 1, reason)
            if is_last:  # I6; the writer of a body has noted that the folder missed it
                self._last_fault = reason
                return
            folder.reason = reason or "it failed"
            self._write_marks()
            self._woken.set()

    def _write_marks(self, back: BodyFolder | None = None) -> bool:
        """Write the marks (I3).

        Args:
            back: a folder that is stale up to now and is not from here on; it serves on return, if that is so.

        Returns:
            Whether every folder that is not stale has its mark. The returning folder gets its own last: until then it has an
            older version than the others, and a start reads nothing from it.
        """
        self._version += 1
        stale = [each.index for each in self._folders if each.reason and each is not back]
        lacking = [each.index for each in self._folders if (each.lacks or each.may_lack) and each.index not in stale]
        replaced: BodyFolder | None = None
        fault = ""
        for each in self._serving:
            try:
                each.write_mark(self._version, stale, lacking)
            except (OSError, StoreError) as error:
                self._drop(each, str(error))  # which has written the marks of the others
                if each.reason or back is None:
                    return False
                replaced, fault = each, str(error)  # I6
                stale.append(each.index)
        if back is None:
            return True
        try:
            back.write_mark(self._version, stale, lacking)
        except (OSError, StoreError) as error:
            back.reason = str(error)
            self._write_marks()
            return False
        back.reason = ""  # set only now: after a kill before this, it would not count
        if replaced is not None:
            self._drop(replaced, fault)
        return True

    def _run(self) -> None:
        while not self._closed.is_set():
            self._woken.wait(_CHECK_SECONDS)
            self._woken.clear()
            try:
                self._check_all()
            except Exception:  # noqa: BLE001 - whatever it is, the next check follows
                _log.exception("a fault in the check of bodies of large messages")

    def _check_all(self) -> None:
        for folder in self._folders:
            if not folder.reason and folder.read_mark() is None:
                self._drop(folder, _MISSING)
                self._replace_last(folder)
            if folder.reason and self._serving:
                self._try_return(folder)
            elif not folder.reason and folder.lacks:
                self._try_filling(folder)

    def _replace_last(self, last: BodyFolder) -> None:
        """Serve from another folder if the files of the last one are missing (I11): no body was acknowledged since it is alone."""
        with self._lock:
            if self._serving != [last]:
                return
            marks = {
                each: mark for each in self._folders if each is not last and (mark := each.read_mark()) is not None
            }
            if len(marks) < MAJORITY:
                return
            newest = max(marks.values())
            whole = [each for each, mark in marks.items() if mark == newest and each.index not in mark.stale]
            if not whole or not newest.has_whole:
                return
            _log.error("zone %d is read instead: the bodies of zone %d are missing", whole[0].index + 1, last.index + 1)
            last.reason, whole[0].reason = _MISSING, ""
            whole[0].lacks |= self._writing  # as for one that was out of service between two parts
            self._write_marks()

    def _try_return(self, folder: BodyFolder) -> None:
        try:
            folder.check_set()  # I8
            folder.identify()
            with self._lock:
                self._begun, self._removed = set(self._writing), set()
            self._fill(folder, set())
            with self._lock:
                begun = set(self._begun)
                self._forget_former(folder, begun)
                folder.lacks = begun
                self._know_lacks([*self._serving, folder])
                if not self._write_marks(folder):
                    return
                removed = set(self._removed)
            for number in removed:  # removed from the others only
                folder.forget(number)
            # A body that began without this folder is copied when it has ended, by a later check: no check waits for a sender.
            self._fill_lacks(folder)
        except (StoreError, OSError) as error:
            if folder.reason:
                folder.reason = str(error)
            else:
                self._drop(folder, str(error))
            return
        _log.warning("zone %d takes bodies of large messages again: folder='%s'", folder.index + 1, folder.path)

    def _try_filling(self, folder: BodyFolder) -> None:
        try:
            self._fill_lacks(folder)
        except (StoreError, OSError) as error:
            self._drop(folder, str(error))

    def _fill_lacks(self, folder: BodyFolder) -> None:
        """Copy the bodies that began without a serving folder, and have ended; from a folder that has them all (I10)."""
        with self._lock:
            wanted = folder.lacks - self._writing
            self._removed = set()
        if not wanted:
            return
        self._fill(folder, wanted)
        for number in self._removed & wanted:  # removed while they were copied
            folder.forget(number)
        with self._lock:
            if any(each is not folder and not each.lacks & wanted for each in self._serving):
                folder.lacks = folder.lacks - wanted
                if not folder.reason:
                    self._write_marks()

    @staticmethod
    def _forget_former(folder: BodyFolder, numbers: set[int]) -> None:
        """Remove everything readable under numbers that are used again (I7); raises OSError where the folder refuses."""
        for number in numbers:
            folder.sums_path(number).unlink(missing_ok=True)
        if numbers:
            sync_folder(folder.path)

    def _fill(self, folder: BodyFolder, only: set[int]) -> None:
        """Copy the bodies that a folder lacks, and remove those that the others do not have."""
        others = [each for each in self._serving if each is not folder]
        wanted = {number for each in others for number in each.bodies.numbers()}
        self._see_there(others)
        for number in sorted(wanted - self._writing):
            if only and number not in only:
                continue
            sums = self._sums(number, folder)
            if sums is None:  # it never ended, or its checksums cannot be read: the present one may be the better one
                continue
            if folder.sums(number) == sums and self._is_whole(folder, number, sums):
                continue
            self._copy(number, folder)
        if not only and self._may_remove:
            surplus = set(folder.bodies.numbers()) - wanted - self._writing - self._begun
            surplus -= {number for each in self._serving for number in each.lacks}
            if surplus:
                self._see_there(self._serving)
            for number in surplus:
                folder.forget(number)

    def _see_there(self, folders: Sequence[BodyFolder]) -> None:
        """Check that folders contain the bodies that they list (I5, I11): a removed disk lists nothing."""
        for each in folders:
            if each.read_mark() is None:
                self._drop(each, _MISSING)
                raise StoreError("another zone has failed meanwhile")

    @staticmethod
    def _is_whole(folder: BodyFolder, number: int, sums: Sums) -> bool:
        if not folder.has(number):  # an empty body has no block to check
            return False
        try:
            for block in range(len(sums.blocks)):
                read_block(folder, number, sums, block)
        except StoreError:
            return False
        return True

    def _sums(self, number: int, besides: BodyFolder | None = None) -> Sums | None:
        for folder in self._serving:
            if folder is not besides and number not in folder.lacks and (sums := folder.sums(number)) is not None:
                return sums
        return None

    def _copy(self, number: int, folder: BodyFolder) -> None:
        folder.forget(number)
        with ExitStack() as stack:
            others = [each for each in self._serving if each is not folder]
            for each in others:  # a body that is being removed is shortened first, which is not damage
                stack.enter_context(each.bodies.kept())
            others = [each for each in others if each.has(number)]
            if others:
                self._copy_from(others, number, folder)

    def _copy_from(self, others: Sequence[BodyFolder], number: int, folder: BodyFolder) -> None:
        reader = BodyReader(self, number, others)
        writer = folder.bodies.create(number)
        try:
            for start in range(0, reader.size_bytes, BLOCK_BYTES):
                writer.write([reader.read(start, min(BLOCK_BYTES, reader.size_bytes - start))])
            writer.sync()
            write_file(folder.sums_path(number), reader.sums.pack())
        finally:
            writer.close()

    # ---- bodies

    def numbers(self) -> list[int]:
        """Of all bodies, whole or not."""
        return sorted({number for folder in self._folders for number in _numbers(folder)})

    def create(self, number: int) -> BlobWriter:
        """Begin a body.

        Raises:
            StoreError: fewer than two disks take it.
        """
        writers: dict[BodyFolder, BlobWriter] = {}
        with self._lock:
            self._writing.add(number)
            self._begun.add(number)
            for folder in self._serving:
                try:
                    folder.clear(number)
                    writers[folder] = folder.bodies.create(number)
                except StoreError as error:
                    self._drop(folder, str(error))
        writer = BodyWriter(self, number, writers)
        try:
            writer.check()
        except StoreError:
            writer.close()
            raise
        return writer

    def written(self, number: int) -> None:
        """A body's writer was closed."""
        with self._lock:
            self._writing.discard(number)

    def drop(self, folder: BodyFolder, reason: str) -> None:
        """A folder failed."""
        self._drop(folder, reason)

    def too_few(self) -> StoreError:
        """The error where a body cannot be kept twice."""
        return StoreError(f"Bodies of large messages need {MAJORITY} of {COPIES} zones: {self._reasons()}")

    def open(self, number: int) -> BlobReader:
        """Read a body.

        Raises:
            StoreError: no folder has it.
        """
        return BodyReader(self, number, self._serving)

    def remove(self, number: int) -> None:
        """Remove a body; no error if it does not exist."""
        with self._lock:
            self._removed.add(number)
            serving = self._serving
        for folder in serving:
            folder.forget(number)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within, no body is removed."""
        with ExitStack() as stack:
            for folder in self._folders:
                stack.enter_context(folder.bodies.kept())
            yield

    def copy_to(self, folder: Path) -> None:
        """Put all bodies into a folder that does not exist yet; durable on return.

        Raises:
            OSError: the disk refused, or a body cannot be read.
        """
        numbers = sorted({number for each in self._serving for number in each.bodies.numbers()} - self._writing)
        if not numbers:
            return
        target = BlobFolder(folder)
        make_private(folder)
        for number in numbers:
            if not any(each.sums_path(number).exists() for each in self._serving):
                continue  # it never ended
            try:
                # A body that is being removed is missing in some folders.
                reader = BodyReader(self, number, [each for each in self._serving if each.has(number)])
                writer = target.create(number)
                try:
                    for start in range(0, reader.size_bytes, BLOCK_BYTES):
                        writer.write([reader.read(start, min(BLOCK_BYTES, reader.size_bytes - start))])
                    writer.sync()
                finally:
                    writer.close()
            except StoreError as error:
                raise OSError(str(error)) from error
        sync_folder(folder)

    def take_over(self, plain: BlobFolder) -> None:
        """Copy the bodies of a namespace that had one folder.

        Raises:
            StoreError: a disk refused.
        """
        for number in plain.numbers():
            size = plain.path_of(number).stat().st_size
            reader, writer = plain.open(number), self.create(number)
            try:
                for start in range(0, size, BLOCK_BYTES):
                    writer.write([reader.read(start, min(BLOCK_BYTES, size - start))])
                writer.sync()
            finally:
                writer.close()


def _numbers(folder: BodyFolder) -> list[int]:
    try:
        folder.check_set()
        return folder.bodies.numbers()
    except (OSError, StoreError):
        return []
