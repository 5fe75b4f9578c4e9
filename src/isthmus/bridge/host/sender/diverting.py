"""The handles of one route whose steps divert messages, reported to the reader as one.

What it is: the reports of the route's target and of each divert target, joined under the number of the route, and the diverted rows in
the form for their targets. What it is not: sending, which each handle does (`handle`), or the loop (`sender.routes`).

Invariants:
    I1. The route is ready when all of its handles are, and paused while any of them is; the text names a divert target.
    I2. A diverted message is reported as diverted only after the entity that it was sent to has acknowledged it.
    I3. A settlement of one handle does not affect messages of another one.
    I4. Once a handle has failed the route has failed, and nothing more is reported of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from isthmus.amqp.codec import CodecError
from isthmus.bridge.delivery_event import DIVERT, Disposition
from isthmus.bridge.divert import explained
from isthmus.bridge.host.sender.handle import Reports
from isthmus.bridge.host.sender.rows import Part
from isthmus.errors import IsthmusError

__all__ = ["Diverted", "DivertingRoute", "name_of"]

MALFORMED = "Malformed"

Diverted = tuple[int, Disposition, bytes]
"""Position, target and reason, encoded message."""


def name_of(disposition: Disposition) -> str:
    """The entity that a disposition diverts to, as its route names it."""
    return disposition.kind.removeprefix(f"{DIVERT}:")


class DivertingRoute:
    """The reports of one route.

    Args:
        number: the reader's handle.
        route: its name.
        source: the origin that the copies name.
        names: by handle, the entities that messages are diverted to.
        reports: gets the reports.
    """

    def __init__(self, number: int, route: str, source: str, names: Mapping[int, str], reports: Reports) -> None:
        self.number = number
        self.keys = {name: key for key, name in names.items()}
        self._route = route
        self._source = source
        self.names = dict(names)
        self._reports = reports
        self._opening = {number, *names}
        self._paused: dict[int, str] = {}
        self._pending: dict[int, Disposition] = {}  # by position, why it is diverted
        self._has_failed = False

    @property
    def handles(self) -> tuple[int, ...]:
        """The numbers of all handles, that of the target first."""
        return self.number, *self.names

    def part(self, rows: Iterable[Diverted], clock_offset_ms: int | None = None) -> Part:
        """Rows for one entity, with the reason in each."""
        positions: list[int] = []
        offsets, pieces = [0], []
        disposed: list[tuple[int, Disposition]] = []
        for position, disposition, message in rows:
            why = Disposition(DIVERT, disposition.reason, disposition.description)
            try:
                piece = explained(message, why.reason, why.description, self._source, self._route)
            except (CodecError, ValueError, IndexError) as error:
                text = f"it cannot be diverted: {error} ({why.reason}: {why.description})"
                disposed.append((position, Disposition("dead-letter", MALFORMED, text)))
                continue
            self._pending[position] = why
            positions.append(position)
            pieces.append(piece)
            offsets.append(offsets[-1] + len(piece))
        return Part(positions, b"".join(pieces), offsets if positions else [], disposed, clock_offset_ms)

    # ---- for the handles

    def ready(self, handle: int) -> None:
        """The target of a handle is open."""
        self._opening.discard(handle)
        if not self._opening and not self._has_failed:
            self._reports.ready(self.number)
            if self._paused:  # one that opened before is disconnected again: READY means that all are open
                self._report_paused()

    def settle(self, handle: int, positions: Any) -> None:
        """The target of a handle has acknowledged these positions."""
        if self._has_failed:
            return
        if handle == self.number:
            self._reports.settle(self.number, positions)
            return
        for position in positions:
            why = self._pending.pop(position, Disposition(DIVERT))
            self._reports.dispose(self.number, position, why, self.names[handle])

    def dispose(self, handle: int, position: int | None, disposition: Disposition, route: str) -> None:
        """A message gets another disposition at its source."""
        why = self._pending.pop(position, None) if position is not None and handle != self.number else None
        if why is not None:
            text = f"divert target {self.names[handle]}: {disposition.description} ({why.reason}: {why.description})"
            # A message on which a step failed must not be completed because its copy was not made.
            kind = "dead-letter" if disposition.kind == "complete" else disposition.kind
            disposition = Disposition(kind, disposition.reason, text)
        if not self._has_failed:
            self._reports.dispose(self.number, position, disposition, route)

    def pause(self, handle: int, text: str) -> None:
        """The target of a handle accepts nothing."""
        self._paused[handle] = self.named(handle, text)
        self._report_paused()

    def resume(self, handle: int) -> None:
        """The target of a handle accepts messages again."""
        self._paused.pop(handle, None)
        self._report_paused()

    def _report_paused(self) -> None:
        if self._has_failed:
            return
        if self._paused:
            self._reports.pause(self.number, "; ".join(self._paused.values()))
        else:
            self._reports.resume(self.number)

    def failed(self, handle: int, error: IsthmusError, is_fatal: bool) -> None:
        """A handle cannot continue."""
        if not self._has_failed:
            self._has_failed = True
            self._reports.failed(self.number, error, is_fatal)

    def may_send(self, claim: str) -> bool:
        """Whether the claim is confirmed now."""
        return not self._has_failed and self._reports.may_send(claim)

    def named(self, handle: int, text: str) -> str:
        """A text about the target of a handle, with its name where it is not the route's target."""
        name = self.names.get(handle)
        return f"{name.partition('/')[0]}: divert target {name}: {text}" if name and text else text
