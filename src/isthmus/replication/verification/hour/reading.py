"""The times at which messages entered their origins, as an audit finds them.

What it is: where a time is taken from: the origin's own reading, then what waits before routes or was set aside there, then what copies,
tables and ledgers report. What it is not: the hours of numbers without a time (`isthmus.replication.verification.hour.hour`).

Invariants:
    I1. What an audit keeps anyway, the times of originals and of copies, is not stored a second time before the comparison.
    I2. Where an origin reports no time, as with RabbitMQ, a message has the time in its copy: when a route received it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from isthmus.connectors.servicebus.message.sequence import broker_times_of
from isthmus.replication.verification.audit.audited import Audited
from isthmus.replication.verification.hour.hour import HourOf, Times, hours_of
from isthmus.replication.verification.identity import Identity

__all__ = ["HourReading"]


class HourReading:
    """The times of an audit.

    Args:
        audited: by label, what is read.
    """

    def __init__(self, audited: Mapping[str, Audited]) -> None:
        self._audited = audited
        self._times: dict[str, Times] = {}

    def add(self, origin: str, number: int, enqueued_ms: int) -> None:
        """A message was enqueued at its origin at this wall time; 0: not known."""
        self._times.setdefault(origin, Times()).add(number, enqueued_ms)

    def add_ledger(self, origin: str, numbers: Iterable[int], enqueued_ms: Mapping[int, int]) -> None:
        """Adds what a ledger records for these numbers."""
        for number in numbers:
            self.add(origin, number, enqueued_ms.get(number, 0))

    def see(self, at: Audited, message: bytes, identity: Identity) -> None:
        """A message was read from an audited entity, and is in its account."""
        if identity.origin:
            return  # its time is among the arrivals
        if at.forwards:
            self.add(at.forwards, identity.number, broker_times_of(message)[0])
        elif at.is_origin and at.first_pass and identity.number not in at.originals:
            self.add(at.alias, identity.number, broker_times_of(message)[0])

    def hours_of(self, origin: str) -> HourOf:
        """The hours of an origin's messages; to be called once all copies have their numbers (`Recorded`)."""
        times = Times()
        own = self._audited.get(origin)
        if own is not None:
            for number, enqueued_ms in own.originals.times():
                times.add(number, enqueued_ms)
        if origin in self._times:
            times.extend(self._times[origin])
        for each in self._audited.values():
            arrivals = each.arrivals.get(origin)
            if arrivals is None:
                continue
            for number, enqueued_ms in zip(arrivals.numbers, arrivals.entered_ms, strict=True):
                if own is None or number not in own.originals or not own.originals.enqueued_ms(number):
                    times.add(number, enqueued_ms)
        return hours_of(times)
