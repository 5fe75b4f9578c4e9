"""A topic of Event Grid as a target: the requests of `isthmus.connectors.request`.

What it is: the publishing of events, many in one request. What it is not: the decision when, and the handling of a refusal.

Invariants:
    I1. An event of more than 1 MiB is refused without a request.
    I2. If a request of several events is refused for its contents, each is sent alone: only the one at fault is refused.
    I3. Answers for some events are reported even if others fail: they are not sent a second time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from isthmus.amqp.codec import CodecError
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.eventgrid.mapping import CONTENT_TYPES, LIMIT_BYTES, event_of
from isthmus.connectors.eventgrid.option import TargetOptions
from isthmus.connectors.eventgrid.service import EventGrid
from isthmus.connectors.http.target import judge, network_refusal
from isthmus.connectors.request.requester import BusyError, RequestError
from isthmus.errors import IsthmusError

__all__ = ["EventGridRequester"]

_REST = Refusal(RefusalKind.BLOCKED, "", "a batch was refused; its other events are sent alone, later")


class EventGridRequester:
    """Publishes to one topic.

    Args:
        options: of the target.
        now: monotonic seconds.
    """

    batch = 100
    # Of encoded messages; as JSON with base64 they are larger.
    batch_bytes = 200_000

    def __init__(self, options: TargetOptions, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.entity = options.entity
        self._options = options
        self._service: EventGrid | None = None
        self._is_closed = False

    def open(self) -> str:
        """Connects.

        Raises:
            RequestError: it cannot connect.
        """
        try:
            service = EventGrid(self._options.service)
        except IsthmusError as error:
            kind = RefusalKind.UNKNOWN if error.retryable else RefusalKind.FATAL
            raise RequestError(Refusal(kind, error.code, str(error))) from None
        except OSError as error:
            raise RequestError(Refusal(RefusalKind.FATAL, "", f"ca_file: {error}")) from None
        self._service = service
        if self._is_closed:
            service.close()
        try:
            service.connect()
        except OSError as error:
            raise RequestError(network_refusal(service.identity, error)) from None
        return service.identity

    def send(self, payloads: Sequence[bytes]) -> Sequence[Refusal | None]:
        """Publishes messages.

        Raises:
            BusyError: they are refused for now.
            RequestError: the outcome is unknown, or they are refused.
        """
        answered: dict[int, Refusal | None] = {}
        events: list[tuple[int, bytes]] = []
        for index, payload in enumerate(payloads):
            event = self._event(payload)
            if isinstance(event, Refusal):
                answered[index] = event
            else:
                events.append((index, event))
        groups = deque(_groups(events))
        limit = self._now() + self._options.service.timeout_seconds
        try:
            while groups:
                group = groups.popleft()
                refusal = self._publish([event for _, event in group])
                if refusal is None or len(group) == 1:
                    answered.update((index, refusal) for index, _ in group)
                else:
                    groups.extendleft([each] for each in reversed(group))
                if groups and self._now() >= limit:  # or the answers would arrive after the time-out
                    raise BusyError(_REST)
        except (BusyError, RequestError) as error:
            error.answered = answered
            raise
        return [answered[index] for index in range(len(payloads))]

    def _event(self, payload: bytes) -> bytes | Refusal:
        options = self._options
        try:
            event = event_of(payload, options.schema, options.copying.origin, datetime.now(UTC))
        except CodecError as error:
            return Refusal(RefusalKind.MESSAGE, "", f"topic '{self.entity}': {error}", "Malformed")
        if len(event) + 2 > LIMIT_BYTES:
            words = f"topic '{self.entity}': the event has {len(event)} bytes; {LIMIT_BYTES} are accepted"
            return Refusal(RefusalKind.MESSAGE, "413", words, "MessageTooLarge")
        return event

    def _publish(self, events: Sequence[bytes]) -> Refusal | None:
        service, options = self._service, self._options
        assert service is not None
        what = f"publish to {service.identity}/{self.entity}"
        try:
            answer = service.publish(self.entity, CONTENT_TYPES[options.schema], events)
        except OSError as error:
            raise RequestError(network_refusal(what, error)) from None
        return judge(what, answer, service.secret)

    def close(self) -> None:
        """Closes it."""
        self._is_closed = True
        if self._service is not None:
            self._service.close()


def _groups(events: Sequence[tuple[int, bytes]]) -> list[list[tuple[int, bytes]]]:
    """Groups of events within the limit of a request."""
    groups: list[list[tuple[int, bytes]]] = []
    size = LIMIT_BYTES
    for each in events:
        size += len(each[1]) + 1
        if size + 1 > LIMIT_BYTES:
            groups.append([])
            size = len(each[1]) + 1
        groups[-1].append(each)
    return groups
