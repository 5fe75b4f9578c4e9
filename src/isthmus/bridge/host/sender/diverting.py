"""The handles of one route whose steps divert messages, told to the reader as one.

What it is: the reports of the route's target and of each entity that messages are diverted to, joined under the number of the route, and
the diverted rows as those entities get them. What it is not: the sending, which is each handle's (`handle`), or the loop (`sender.routes`).

Invariants:
    I1. The route is ready when all of its handles are, and paused while any of them is; the text names a divert target.
    I2. A diverted message is told as diverted when the entity that it was sent to has acknowledged it, and not before.
    I3. What one handle settles says nothing of what another one has.
    I4. Once a handle has failed the route has, and nothing more is told of it.
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
"""Position, where and why, encoded message."""


def name_of(disposition: Disposition) -> str:
    """The entity that a disposition diverts to, as its route names it."""
    return disposition.kind.removeprefix(f"{DIVERT}:")


class DivertingRoute:
    """The reports of one route.

    Args:
        number: the handle that the reader knows.
        route: its name.
        source: what copies name as the place that they come from.
        names: by handle, the entities that messages are diverted to.
        reports: whom to tell.
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
            if self._paused:  # one that opened before is away again: READY says that none is
                self._tell_paused()

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
            # Nothing that a step failed on is completed because its copy was stopped on the way.
            kind = "dead-letter" if disposition.kind == "complete" else disposition.kind
            disposition = Disposition(kind, disposition.reason, text)
        if not self._has_failed:
            self._reports.dispose(self.number, position, disposition, route)

    def pause(self, handle: int, text: str) -> None:
        """The target of a handle takes nothing."""
        self._paused[handle] = self.named(handle, text)
        self._tell_paused()

    def resume(self, handle: int) -> None:
        """The target of a handle takes messages again."""
        self._paused.pop(handle, None)
        self._tell_paused()

    def _tell_paused(self) -> None:
        if self._has_failed:
            return
        if self._paused:
            self._reports.pause(self.number, "; ".join(self._paused.values()))
        else:
            self._reports.resume(self.number)

    def failed(self, handle: int, error: IsthmusError, is_fatal: bool) -> None:
        """A handle cannot go on."""
        if not self._has_failed:
            self._has_failed = True
            self._reports.failed(self.number, error, is_fatal)

    def may_send(self, claim: str) -> bool:
        """Whether the claim is known to be held now."""
        return not self._has_failed and self._reports.may_send(claim)

    def named(self, handle: int, text: str) -> str:
        """A text about the target of a handle, which names it where it is not the route's."""
        name = self.names.get(handle)
        return f"{name.partition('/')[0]}: divert target {name}: {text}" if name and text else text
