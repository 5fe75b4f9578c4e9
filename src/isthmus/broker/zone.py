"""A namespace whose store is in three zones: its layout, and the state of the zones.

What it is: the layout of a zone's folder, the first start on zones of a namespace that had one folder, keys and
certificate in each zone, and the zones' state for health and metrics. What it is not: the copies
(`isthmus.store.zone`). See docs/explanation/zones.md.

    zone/store            the copy of the store            zone/large       bodies of large messages
    zone/fragments/N      of each store of fragments       zone/keys.json, zone/certificate

Invariants:
    I1. A namespace that was served from zones is not served from its data folder alone: it would be empty.
    I2. A folder that contains a namespace of its own is not used as a zone.
    I3. Keys and certificate that are missing in the data folder are copied from the zones.
    I4. Nothing is copied from a zone of another namespace, and nothing in it is overwritten.
    I5. Missing or different copies of these files in a zone are repaired while the data folder has them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from isthmus.broker.backup import FRAGMENTS_FOLDER, LARGE_FOLDER, back_up
from isthmus.broker.security.keyring import KEY_FILE
from isthmus.entities import BlobFiles, FragmentStores, Journal
from isthmus.errors import InvalidArgumentError, StoreError
from isthmus.store import BlobFolder, RocksJournal, make_private
from isthmus.store.zone import COPIES, NoteError, ZonedBlobs, ZonedJournal, ZoneStatus, read_note
from isthmus.whole_file import write_file

__all__ = [
    "ZoneFiles",
    "ZoneRow",
    "back_up_zoned",
    "check_zones",
    "close_zoned",
    "known_zones",
    "open_zoned",
    "zone_rows",
]

_log = logging.getLogger(__name__)

_NAME = "zones.json"
_STORE = "store"
# The share of one store's memory for each copy, so that three copies together use as much as one store.
_SHARE = COPIES
_MIRROR_SECONDS = 2.0


def known_zones(data: Path) -> tuple[Path, ...]:
    """The zones from which a data folder's namespace was served last; empty if it has none.

    Raises:
        StoreError: the data folder cannot be read.
    """
    try:
        return tuple(Path(each) for each in json.loads((data / _NAME).read_text(encoding="utf-8"))["zones"])
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"'{data / _NAME}' cannot be read: {error}") from None


def check_zones(data: Path, zones: Sequence[Path]) -> None:
    """Checks that a namespace can be served from its data folder and these zones.

    Raises:
        InvalidArgumentError: with what to do.
        StoreError: the data folder cannot be read.
    """
    if not zones:
        if known := known_zones(data):
            raise InvalidArgumentError(
                f"the store of the namespace in '{data}' is in zones: serve it with "
                + " ".join(f"--zone {zone}" for zone in known)
                + ", or, to do without zones, serve a back-up of it"
            )
        return
    places = {zone.resolve() for zone in zones}
    if len(zones) != COPIES or len(places) != COPIES:
        raise InvalidArgumentError(
            f"a store has {COPIES} zones, each another folder; there are {len(places)}: "
            + ", ".join(f"'{zone}'" for zone in zones)
        )
    for zone in zones:
        place = zone.resolve()
        if place == data.resolve():
            raise InvalidArgumentError(f"the zone '{zone}' is the data folder; name a folder of its own")
        if (inner := next((each for each in places if each != place and each in place.parents), None)) is not None:
            raise InvalidArgumentError(f"the zone '{zone}' is inside another one, '{inner}'")
        if _is_there(zone / _STORE / "CURRENT"):
            raise InvalidArgumentError(f"'{zone}' is the data folder of another namespace; name a folder of its own")


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a disk that fails: the store reports it
        return False


class _Zoned(NamedTuple):
    """The parts of a store in zones."""

    journal: ZonedJournal
    blobs: ZonedBlobs
    zones: tuple[Path, ...]

    def open_fragments(self, index: int) -> ZonedJournal:
        """A store of fragments."""
        return ZonedJournal([zone / FRAGMENTS_FOLDER / str(index) for zone in self.zones], share=_SHARE * 4)


def open_zoned(data: Path, zones: Sequence[Path]) -> _Zoned:
    """Opens the store of a namespace in its zones; one that was in the data folder is copied into them.

    Raises:
        InvalidArgumentError: as `check_zones`.
        StoreError: fewer than two zones can be read, or a disk refused.
    """
    check_zones(data, zones)
    zones = tuple(zone.absolute() for zone in zones)
    is_known = bool(known_zones(data))
    is_taken_over = not is_known and (data / _STORE / "CURRENT").exists()
    journal = ZonedJournal([zone / _STORE for zone in zones], share=_SHARE, may_found=not is_known)
    try:
        blobs = ZonedBlobs([zone / LARGE_FOLDER for zone in zones], journal.set_name)
    except BaseException:
        journal.close()
        raise
    found = _Zoned(journal, blobs, zones)
    try:
        if is_taken_over:
            _take_over(data, found)
        write_file(data / _NAME, json.dumps({"zones": [str(zone) for zone in zones]}).encode())
        if is_taken_over:
            # Only now: without the note above a start without zones would find an empty data folder, and serve that (I1).
            for name in (_STORE, LARGE_FOLDER, FRAGMENTS_FOLDER):
                if (data / name).exists():
                    _put_aside(data / name)
    except OSError as error:
        close_zoned(found)
        raise StoreError(f"'{data / _NAME}' cannot be written: {error.strerror or error}") from error
    except BaseException:
        close_zoned(found)
        raise
    return found


def close_zoned(zoned: _Zoned) -> None:
    """Close journal and bodies."""
    zoned.blobs.close()
    zoned.journal.close()


def back_up_zoned(data: Path, folder: Path) -> None:
    """Copy a namespace in zones that no process serves, into a plain data folder.

    Raises:
        StoreError: a process has it open, or fewer than two zones can be read, or a disk refused.
        InvalidArgumentError: the folder is there already, or cannot be made.
    """
    zoned = open_zoned(data, known_zones(data))
    with contextlib.ExitStack() as stack:
        stack.callback(close_zoned, zoned)
        fragments: dict[str, Journal] = {}
        for name in sorted({each.name for zone in zoned.zones for each in (zone / FRAGMENTS_FOLDER).glob("*")}):
            journal = fragments[name] = zoned.open_fragments(int(name))
            stack.callback(journal.close)
        back_up(zoned.journal, zoned.blobs, data, folder, fragments)


def _take_over(data: Path, zoned: _Zoned) -> None:
    """Copies a namespace from its data folder into its zones; if it is killed, the next start begins again."""
    _log.warning("the store is copied into its zones: data=%s", data)
    if (data / LARGE_FOLDER).is_dir():
        zoned.blobs.take_over(BlobFolder(data / LARGE_FOLDER))
    for folder in sorted((data / FRAGMENTS_FOLDER).glob("*")):
        fragments = zoned.open_fragments(int(folder.name))
        try:
            _copy_journal(folder, fragments)
        finally:
            fragments.close()
    _copy_journal(data / _STORE, zoned.journal)


def _copy_journal(folder: Path, target: ZonedJournal) -> None:
    source = RocksJournal(folder)
    try:
        target.replace(source)
    finally:
        source.close()


def _put_aside(folder: Path) -> None:
    aside = folder.with_name(folder.name + ".before-zones")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    except OSError as error:
        raise StoreError(f"'{folder}' cannot be renamed: {error.strerror or error}") from error


class ZoneFiles:
    """Keys and certificate of a namespace, kept in each zone as well.

    Args:
        data: the data folder, whose files are authoritative.
        zones: folders.
        set_name: of the copies of the namespace's store.
    """

    def __init__(self, data: Path, zones: Sequence[Path], set_name: str) -> None:
        self._data = data
        self._zones = tuple(zones)
        self._set_name = set_name
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def restore(self) -> None:
        """Copies files that are missing in the data folder from the zone with the newest ones (I3).

        Raises:
            StoreError: the data folder refuses.
        """
        has_certificate = (self._data / "certificate").exists()
        found: dict[Path, list[tuple[int, Path, bytes]]] = {}
        for zone in self._own_zones():
            for name in _small_files(zone):
                with contextlib.suppress(OSError):
                    found.setdefault(name, []).append(
                        ((zone / name).stat().st_mtime_ns, zone / name, (zone / name).read_bytes())
                    )
        for name in sorted(found):
            target = self._data / name
            if target.exists() or (name.parent.name and has_certificate):
                continue
            _, newest, content = max(found[name])
            try:
                make_private(target.parent)
                write_file(target, content)
            except OSError as error:
                raise StoreError(f"'{target}' cannot be written: {error.strerror or error}") from error
            _log.warning("%s was missing in the data folder and is taken from a zone: file='%s'", name, newest)

    def start(self) -> None:
        """Copies now and at intervals, in a thread of its own: a disk that does not respond delays nothing else."""
        self._thread = threading.Thread(target=self._run, name="isthmus-zone-files", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, unless it waits for a disk."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_MIRROR_SECONDS)

    def _run(self) -> None:
        while True:
            try:
                self.mirror()
            except Exception:  # noqa: BLE001 - whatever it is, the next look comes
                _log.exception("a fault while keys and certificate are copied into the zones")
            if self._closed.wait(_MIRROR_SECONDS):
                return

    def mirror(self) -> None:
        """Copies files that are missing or different in a zone into it (I5); a zone that refuses is tried again."""
        for zone in self._own_zones():
            for name in _small_files(self._data):
                with contextlib.suppress(OSError, StoreError):
                    content = (self._data / name).read_bytes()
                    copy = zone / name
                    if not copy.exists() or copy.read_bytes() != content:
                        make_private(copy.parent)
                        write_file(copy, content)

    def _own_zones(self) -> list[Path]:
        return [zone for zone in self._zones if not self._is_foreign(zone)]

    def _is_foreign(self, zone: Path) -> bool:
        """Whether a zone is of another namespace (I4)."""
        with contextlib.suppress(OSError, NoteError):
            note = read_note(zone / _STORE)
            return note is not None and note.set_name != self._set_name
        return False


def _small_files(folder: Path) -> list[Path]:
    found: list[Path] = []
    with contextlib.suppress(OSError):
        found += [Path(KEY_FILE)] if (folder / KEY_FILE).is_file() else []
        names = sorted(os.listdir(folder / "certificate"))
        found += [Path("certificate") / name for name in names if name.endswith(".pem")]
    return found


class ZoneRow(NamedTuple):
    """One zone of a namespace, all its stores together. Totals count since the start.

    Attributes:
        zone: from 1 on.
        state: `serving`, `joining`, `resilvering` or `down`; the worst of its stores.
        reason: the fault; empty where there is none.
        lag_seconds: for how long its disk has been busy with one sync.
        drops_total: how often it was taken out of service.
        resilvers_total: how often it was brought back.
    """

    zone: int
    state: str
    reason: str
    lag_seconds: float
    drops_total: int
    resilvers_total: int


_ORDER = ("down", "resilvering", "joining", "serving")


def zone_rows(store: Journal, stores: FragmentStores | None, blobs: BlobFiles | None) -> list[ZoneRow]:
    """The state of a namespace's zones; empty where it has none."""
    journals = [store, *(each.journal for each in stores or ())]
    zoned = [each.zones() for each in journals if isinstance(each, ZonedJournal)]
    if not zoned:
        return []
    reasons = blobs.reasons() if isinstance(blobs, ZonedBlobs) else [""] * COPIES
    return [_row(statuses, reason) for statuses, reason in zip(zip(*zoned, strict=True), reasons, strict=True)]


def _row(statuses: Sequence[ZoneStatus], bodies: str) -> ZoneRow:
    states = [str(each.state) for each in statuses] + (["down"] if bodies else [])
    reasons = (each.reason for each in statuses if each.state != "serving" and each.reason)
    return ZoneRow(
        statuses[0].zone,
        min(states, key=_ORDER.index),
        next(reasons, bodies),
        max(each.lag_seconds for each in statuses),
        sum(each.drops for each in statuses),
        sum(each.resilvers for each in statuses),
    )
