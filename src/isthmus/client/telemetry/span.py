"""Spans of clients for OpenTelemetry.

What it is: spans around the methods of a client, the trace context in sent messages, and a span around the handling of
received messages. What it is not: an exporter; the application sets up the SDK. Without one, the cost is negligible.
Spec: OpenTelemetry semantic conventions for messaging spans and for HTTP spans; W3C Trace Context.

Invariants:
    I1. A trace continues over a message or a request: from the span that sent it to the span that handles it.
    I2. The return values and exceptions of a method are unchanged.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, TracerProvider

__all__ = ["processing", "traced"]

_T = TypeVar("_T")
_NAME = "isthmus.client"
# Method → kind, operation.
_METHODS: Mapping[str, tuple[SpanKind, str]] = {
    "send_messages": (SpanKind.PRODUCER, "send"),
    "schedule_messages": (SpanKind.PRODUCER, "send"),
    "receive_messages": (SpanKind.CONSUMER, "receive"),
    "receive_deferred_messages": (SpanKind.CONSUMER, "receive"),
    "complete_message": (SpanKind.CLIENT, "settle"),
    "abandon_message": (SpanKind.CLIENT, "settle"),
    "dead_letter_message": (SpanKind.CLIENT, "settle"),
    "defer_message": (SpanKind.CLIENT, "settle"),
    "request": (SpanKind.CLIENT, "request"),
    "connect": (SpanKind.CLIENT, "connect"),
}


def traced(client: _T, provider: TracerProvider | None = None) -> _T:
    """Wrap the methods of a client in spans.

    Args:
        client: an object of `isthmus.client` or `isthmus.client.aio`.
        provider: provider of the spans; None: the global one.

    Returns:
        The same object.
    """
    tracer = trace.get_tracer(_NAME, tracer_provider=provider)
    entity = str(getattr(client, "_entity", ""))
    for name, (kind, operation) in _METHODS.items():
        method = getattr(client, name, None)
        if method is None:
            continue
        attributes = {"messaging.operation.name": name, "messaging.operation.type": operation}
        if operation not in ("request", "connect"):
            attributes["messaging.system"] = "servicebus"
        if entity:
            attributes["messaging.destination.name"] = entity
        title = f"{name} {entity}".strip()
        start = functools.partial(tracer.start_as_current_span, title, kind=kind, attributes=attributes)
        setattr(client, name, _wrapped(method, operation, start))
    return client


def _wrapped(method: Any, operation: str, start: Any) -> Any:
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def awaited(*args: Any, **options: Any) -> Any:
            with start() as span:
                _before(span, operation, args, options)
                result = await method(*args, **options)
                _after(span, operation, result)
                return result

        return awaited

    @functools.wraps(method)
    def called(*args: Any, **options: Any) -> Any:
        with start() as span:
            _before(span, operation, args, options)
            result = method(*args, **options)
            _after(span, operation, result)
            return result

    return called


def _before(span: Span, operation: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    if operation in ("request", "connect"):
        if args and operation == "request":
            span.set_attribute("http.request.method", str(args[0]).upper())
        options["headers"] = headers = dict(options.get("headers") or {})
        propagate.inject(headers)
    elif operation in ("send", "settle") and args:
        messages = list(_messages(args[0]))
        if len(messages) == 1 and getattr(messages[0], "message_id", None):
            span.set_attribute("messaging.message.id", str(messages[0].message_id))
        elif operation == "send":
            span.set_attribute("messaging.batch.message_count", len(messages))
        if operation == "send":
            for message in messages:
                if hasattr(message, "application_properties"):  # not a mapping that represents a message
                    _inject(message)


def _after(span: Span, operation: str, result: Any) -> None:
    if operation == "receive":
        span.set_attribute("messaging.batch.message_count", len(result))
    for name in ("taken", "pending", "missed", "unknown"):
        if isinstance(found := getattr(result, name, None), tuple):
            span.set_attribute(f"isthmus.{name}", found)
    if isinstance(side := getattr(result, "side", None), str):
        span.set_attribute("isthmus.side", side)
    if operation == "request":
        span.set_attribute("http.response.status_code", result.status)


def _messages(given: Any) -> Iterable[Any]:
    """The messages of a call; a batch counts as one message; its content is encoded already."""
    if isinstance(given, list | tuple):
        return given
    return [given] if hasattr(given, "application_properties") else []


def _inject(message: Any) -> None:
    properties = message.application_properties
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    present = {_text(key) for key in properties or {}}
    if "traceparent" not in present and carrier:
        message.application_properties = {**(properties or {}), **carrier}


@contextmanager
def processing(received: Any, provider: TracerProvider | None = None) -> Iterator[Span]:
    """A span around the handling of a received message, or of a request that came through a relay.

    Args:
        received: the message or `RelayRequest`; its sender's trace is continued.
        provider: provider of the span; None: the global one.
    """
    if hasattr(received, "application_properties"):
        carried, title, kind = received.application_properties or {}, "process", SpanKind.CONSUMER
        attributes = {"messaging.system": "servicebus", "messaging.operation.type": "process"}
        if received.message_id:
            attributes["messaging.message.id"] = str(received.message_id)
    else:
        carried, title, kind = received.headers, received.method, SpanKind.SERVER
        path = received.target.partition("?")[0]
        attributes = {"http.request.method": received.method, "url.path": path, "isthmus.side": received.side}
    carrier = {_text(key).lower(): _text(value) for key, value in carried.items()}
    context = propagate.extract(carrier)
    tracer = trace.get_tracer(_NAME, tracer_provider=provider)
    with tracer.start_as_current_span(title, context=context, kind=kind, attributes=attributes) as span:
        yield span


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
