"""The state of a pair on disk.

What it is: one small JSON file for each pair in the state folder, written whole and synced, and two locks: that of the
file, locked while it is saved, and that of the work at the members, which may take long. A forced fail-over locks
only the first, so that it never waits for work that hangs at an unreachable member. What it is not: the state's meaning
(`isthmus.pairing.state.state`).

Invariants:
    I1. After a kill at any instant, the file has the old or the new state, whole.
    I2. A state that cannot be read is an error, and never treated as missing.
    I3. A state of an older epoch never replaces one of a newer: work that a forced fail-over has overtaken ends with
        `SupersededError`.
    I4. A broken pair stays broken: only `create` makes a state if there is none.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from isthmus.errors import IsthmusError
from isthmus.pairing.state.state import PairState
from isthmus.whole_file import make_folder, sync_folder, write_file

__all__ = ["NotPairedError", "PairInUseError", "Stamp", "StateFile", "StateFileError", "SupersededError"]

_FILE = "state.json"
_LOCK = "state.lock"
_WORK_LOCK = "work.lock"
_POLL_SECONDS = 0.05
_TICK_NS = 100_000_000
"""Several ticks of any system: of Linux at most 10 ms."""


class StateFileError(IsthmusError):
    """The state of a pair cannot be read or written."""

    code = "pair-state"

    def __init__(self, file: str = "", reason: str = "", hint: str = "") -> None:
        super().__init__("", file=file, reason=reason, hint=hint)
        self.file, self.reason, self.hint = file, reason, hint

    def text(self) -> str:
        return f"'{self.file}', which has the active member of the pair: {self.reason}; {self.hint}"


class NotPairedError(IsthmusError):
    """There is no such pair yet."""

    code = "not-paired"

    def __init__(self, pair: str = "", file: str = "") -> None:
        super().__init__("", pair=pair, file=file)
        self.pair, self.file = pair, file

    def text(self) -> str:
        return (
            f"pair '{self.pair}' has not been created: there is no '{self.file}'; run isthmus pair create {self.pair}"
        )


class PairInUseError(IsthmusError):
    """Another process changes the pair."""

    code = "pair-in-use"
    retryable = True

    def __init__(self, pair: str = "") -> None:
        super().__init__("", pair=pair)
        self.pair = pair

    def text(self) -> str:
        return f"another process changes pair '{self.pair}'; wait for it to end"


class SupersededError(IsthmusError):
    """A fail-over has begun since the work started."""

    code = "superseded"
    retryable = True

    def __init__(self, pair: str = "", epoch: int = 0) -> None:
        super().__init__("", pair=pair, epoch=epoch)
        self.pair, self.epoch = pair, epoch

    def text(self) -> str:
        return f"pair '{self.pair}': another fail-over has begun meanwhile (epoch {self.epoch}); see pair status"


class Stamp(NamedTuple):
    """Identifies a saved version of the file. Two within one tick of the file system's clock may have the same."""

    inode: int
    mtime_ns: int
    size_bytes: int

    def is_sure(self, now_ns: int) -> bool:
        """Whether every later version has another one."""
        return now_ns - self.mtime_ns > _TICK_NS


class StateFile:
    """The state of one pair.

    Args:
        folder: state folder of the federation file.
        pair: the pair's name.
    """

    def __init__(self, folder: Path, pair: str) -> None:
        self._pair = pair
        self._folder = folder / "pairs" / pair
        self.path = self._folder / _FILE

    def load(self) -> PairState:
        """The state.

        Raises:
            NotPairedError: there is none.
            StateFileError: it cannot be read.
        """
        try:
            state = PairState.from_dict(json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise NotPairedError(self._pair, str(self.path)) from None
        except OSError as error:
            raise self._error(f"it cannot be read ({error.strerror or error})", "check the file's owner") from None
        except ValueError as error:
            hint = "restore it, or remove it and run pair create with the namespace that is active as primary"
            raise self._error(f"it is damaged ({error})", hint) from None
        return state

    def keep(self, state: PairState) -> None:
        """Write a state to the disk if there is one.

        Raises:
            NotPairedError: the pair was broken meanwhile, and stays broken.
            SupersededError, StateFileError: as `save`.
        """
        with self._locked(_LOCK, wait_seconds=None):
            self.check(state)
            self._write(state)

    def save(self, state: PairState) -> None:
        """Write a state to the disk, also the first one.

        Raises:
            SupersededError: the state on disk is of a newer epoch.
            StateFileError: the folder or the disk refuses; the old state is kept.
        """
        with self._locked(_LOCK, wait_seconds=None):
            with contextlib.suppress(NotPairedError):
                self.check(state)
            self._write(state)

    def check(self, state: PairState) -> None:
        """Check that no fail-over has begun since a state was loaded.

        Raises:
            SupersededError: the state on disk is of a newer epoch.
            NotPairedError, StateFileError: as `load`.
        """
        epoch = self.load().epoch
        if epoch > state.epoch:
            raise SupersededError(self._pair, epoch)

    def change(self, transition: Callable[[PairState], PairState]) -> PairState:
        """Load, change and save, with no other save in between.

        Raises:
            IsthmusError: as `load`, `save` and the transition.
        """
        with self._locked(_LOCK, wait_seconds=None):
            state = transition(self.load())
            self._write(state)
        return state

    def _write(self, state: PairState) -> None:
        try:
            write_file(self.path, json.dumps(state.to_dict(), indent=1).encode())
        except OSError as error:
            raise self._error(f"it cannot be written ({error.strerror or error})", "free space on the disk") from None

    def remove(self) -> None:
        """Remove the state: the pair is broken.

        Raises:
            StateFileError: the folder or the disk refuses.
        """
        with self._locked(_LOCK, wait_seconds=None):  # else a change that has read it would write it again
            try:
                self.path.unlink(missing_ok=True)
                sync_folder(self._folder)
            except OSError as error:
                raise self._error(f"it cannot be removed ({error.strerror or error})", "check its owner") from None

    def stamp(self) -> Stamp:
        """A stamp that changes with each save; zeros if there is no file."""
        try:
            found = self.path.stat()
        except OSError:
            return Stamp(0, 0, 0)
        return Stamp(found.st_ino, found.st_mtime_ns, found.st_size)

    def locked(self, wait_seconds: float = 0.0) -> contextlib.AbstractContextManager[None]:
        """Within, no other process works at the members. A killed process releases the lock.

        Raises:
            PairInUseError: another process has the lock for longer than `wait_seconds`.
            StateFileError: the folder cannot be made.
        """
        return self._locked(_WORK_LOCK, wait_seconds)

    @contextlib.contextmanager
    def _locked(self, name: str, wait_seconds: float | None) -> Iterator[None]:
        deadline = time.monotonic() + (wait_seconds or 0.0)
        try:
            make_folder(self._folder)
            lock = (self._folder / name).open("w")
        except OSError as error:
            raise self._error(f"its folder cannot be used ({error.strerror or error})", "check its owner") from None
        with lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait_seconds is None else fcntl.LOCK_NB))
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise PairInUseError(self._pair) from None
                    time.sleep(_POLL_SECONDS)
            yield

    def _error(self, reason: str, hint: str) -> StateFileError:
        return StateFileError(str(self.path), reason, hint)
