r"""A file of messages: all their bytes, and their origin.

What it is: the format that `isthmus namespace export` writes and `import` reads. What it is not: a format for other tools;
`peek --json` is one.

    "isthmus messages 1\n"
    u32 length | JSON: export_id, namespace, entity, exported_at
    per message: u32 length | u32 CRC-32 of what follows | u8 state (0 active, 1 deferred, 2 scheduled) | encoded message
    u32 0xFFFFFFFF | u32 CRC-32 of what follows | u64 number of messages

Numbers are big-endian. A message is encoded as peek shows it, sequence number and time of enqueueing included.

Invariants:
    I1. A file has its name only once it is whole and on disk; the remains of a kill are called `….partial`. It
        never replaces another file.
    I2. Damage anywhere in a file is reported with the message's position; nothing behind it is read.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from isthmus.errors import InvalidArgumentError, IsthmusError
from isthmus.whole_file import is_there

__all__ = ["DamagedFileError", "FileInUseError", "FileNotWrittenError", "MessageReader", "MessageWriter"]

_MAGIC = b"isthmus messages 1\n"
_RECORD = struct.Struct(">II")
_LENGTH = struct.Struct(">I")
_COUNT = struct.Struct(">Q")
_END = 0xFFFFFFFF
# A namespace takes messages of 100 MiB; a far larger value is not a length.
_LARGEST_BYTES = 1 << 30


class DamagedFileError(IsthmusError):
    """A file of messages is cut off, altered, or not such a file."""

    code = "damaged-file"

    def __init__(self, file: str = "", place: int = 0, reason: str = "") -> None:
        super().__init__("", file=file, place=place, reason=reason)

    def text(self) -> str:
        a = self.attributes
        where = f" at message {a.get('place')}" if a.get("place") else ""
        sound = "; the messages before that are sound" if where else ""
        return f"'{a.get('file')}' is damaged{where}: {a.get('reason')}{sound}"


class FileNotWrittenError(IsthmusError):
    """The disk refused; the text says what, and the consequence."""

    code = "file-not-written"
    retryable = True


class FileInUseError(IsthmusError):
    """Another process imports a file of messages."""

    code = "file-in-use"
    retryable = True

    def __init__(self, file: str = "") -> None:
        super().__init__("", file=file)

    def text(self) -> str:
        return f"'{self.attributes.get('file')}' is being imported by another process; wait for it, or import a copy"


class MessageWriter:
    """Writes a file.

    Args:
        file: must not exist yet.
        header: the origin of the messages; `export_id` and `exported_at` are added.

    Raises:
        InvalidArgumentError: the file exists, or its folder is not writable.
    """

    def __init__(self, file: Path, header: dict[str, Any]) -> None:
        if file.exists():
            raise InvalidArgumentError(f"'{file}' exists already; name a file that does not")
        self._file = file
        # A name of its own: two exports to one name must not write into one file.
        self._partial = file.with_name(f"{file.name}.{os.urandom(4).hex()}.partial")
        self.count = 0
        try:
            descriptor = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise InvalidArgumentError(f"'{file}' cannot be written: {error.strerror}") from None
        self._out: IO[bytes] = os.fdopen(descriptor, "wb")
        whole = {**header, "export_id": os.urandom(16).hex(), "exported_at": datetime.now(UTC).isoformat()}
        encoded = json.dumps(whole).encode()
        self._out.write(_MAGIC + _LENGTH.pack(len(encoded)) + encoded)

    def write(self, payload: bytes, state: int) -> None:
        """Append a message.

        Raises:
            FileNotWrittenError: the disk refused.
        """
        content = bytes((state,)) + payload
        with self._refusals():
            self._out.write(_RECORD.pack(len(content), zlib.crc32(content)))
            self._out.write(content)
        self.count += 1

    def finish(self) -> None:
        """Sync the file and give it its name.

        Raises:
            FileNotWrittenError: the disk refused.
            InvalidArgumentError: a file has that name meanwhile.
        """
        count = _COUNT.pack(self.count)
        with self._refusals():
            self._out.write(_RECORD.pack(_END, zlib.crc32(count)) + count)
            self._out.flush()
            os.fsync(self._out.fileno())
            self._out.close()
            self._name()
            folder = os.open(self._file.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _name(self) -> None:
        """Give the file its name without replacing another file, as a rename would."""
        try:
            os.link(self._partial, self._file)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if is_there(self._file):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
            self._partial.rename(self._file)
        else:
            self._partial.unlink()

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            text = f"'{self._file}' cannot be written: {error.strerror or error}; no message was removed"
            raise (InvalidArgumentError if isinstance(error, FileExistsError) else FileNotWrittenError)(text) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # bytes that a full disk refuses were not written
            self._out.close()
        if kind is not None:
            self._partial.unlink(missing_ok=True)


class MessageReader:
    """Reads a file.

    Attributes:
        header: from the writer.

    Raises:
        DamagedFileError: it is not such a file.
        InvalidArgumentError: it cannot be read.
    """

    def __init__(self, file: Path) -> None:
        self._name = str(file)
        try:
            self._in: IO[bytes] = file.open("rb")
        except OSError as error:
            raise InvalidArgumentError(f"'{file}' cannot be read: {error.strerror}") from None
        if self._in.read(len(_MAGIC)) != _MAGIC:
            self._in.close()
            raise DamagedFileError(self._name, 0, "it does not begin as a file of messages of format 1")
        try:
            (length,) = _LENGTH.unpack(self._in.read(4))
            header: Any = json.loads(self._in.read(min(length, 1 << 20)))
            if not isinstance(header, dict):
                raise TypeError
            self.header: dict[str, Any] = header
        except (struct.error, ValueError, TypeError, RecursionError):
            self._in.close()
            raise DamagedFileError(self._name, 0, "its header cannot be read") from None

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """States and encoded messages.

        Raises:
            DamagedFileError: see I2.
        """
        place = 0
        while True:
            place += 1
            head = self._in.read(_RECORD.size)
            if len(head) < _RECORD.size:
                raise DamagedFileError(self._name, place, "it ends before its end mark")
            length, checksum = _RECORD.unpack(head)
            end = length == _END
            if not end and not 1 < length <= _LARGEST_BYTES:
                raise DamagedFileError(self._name, place, "a length is wrong")
            content = self._in.read(_COUNT.size if end else length)
            if zlib.crc32(content) != checksum:
                raise DamagedFileError(self._name, place, "it was cut off or altered")
            if end:
                if _COUNT.unpack(content)[0] != place - 1:
                    raise DamagedFileError(self._name, place, "messages are missing")
                return
            yield content[0], content[1:]

    def lock(self) -> None:
        """Lock the file against other processes while it is open.

        Raises:
            FileInUseError: another one has it locked.
        """
        try:
            fcntl.flock(self._in, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileInUseError(self._name) from None
        except OSError:  # a file system without locks
            return

    def close(self) -> None:
        """Close the file."""
        self._in.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
