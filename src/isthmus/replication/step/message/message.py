"""An encoded message that a step reads and changes.

What it is: sections that are decoded on first use, changes that are stored separately, and the message encoded again with only these
changes: sections and properties that no step changed keep their bytes. It is a `View` of the rules language. What it is not:
the changes of a copy for its target, which the connector makes.
Specification: OASIS AMQP 1.0 part 3, section 3.2.

Invariants:
    I1. An unchanged message is encoded as the same bytes.
    I2. Unchanged parts keep their encoding: other sections, other properties, their order.
    I3. A number of a JSON body that no step changed keeps its digits (`isthmus.message.json_number`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from isthmus.amqp import codec, section
from isthmus.amqp.types import Symbol
from isthmus.message.json_number import read_exactly, write_json
from isthmus.replication.step.message.amqp_value import amqp_value, rule_text, rule_value
from isthmus.rules import MISSING, REMOVED, Changes, Missing, Value

__all__ = ["StepMessage"]

_FIELDS = {
    "MessageId": "message_id",
    "CorrelationId": "correlation_id",
    "Label": "subject",
    "To": "to",
    "ReplyTo": "reply_to",
    "SessionId": "group_id",
    "ReplyToSessionId": "reply_to_group_id",
    "ContentType": "content_type",
}
_ANNOTATIONS = {
    "PartitionKey": "x-opt-partition-key",
    "ViaPartitionKey": "x-opt-via-partition-key",
    "ScheduledEnqueueTimeUtc": "x-opt-scheduled-enqueue-time",
    "DeadLetterSource": "x-opt-deadletter-source",
    "EnqueuedTimeUtc": "x-opt-enqueued-time",
    "SequenceNumber": "x-opt-sequence-number",
    "EnqueuedSequenceNumber": "x-opt-enqueue-sequence-number",
    "LockedUntilUtc": "x-opt-locked-until",
}
_NO_JSON = object()


class StepMessage:
    """One message.

    Args:
        raw: the encoded message.

    Raises:
        CodecError: the bytes are no message.
    """

    __slots__ = ("_annotations", "_body", "_fields", "_is_plain", "_json", "_set", "_user", "raw", "sections")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.sections = section.locate(raw)
        self._fields: dict[str, Any] | None = None
        self._annotations: dict[str, Any] | None = None
        self._user: dict[str, tuple[str, Any]] | None = None
        self._body: bytes | None = None
        self._json: Any = _NO_JSON
        self._is_plain = True  # the JSON has no number that a float cannot represent
        self._set: dict[str, dict[str, Any]] = {}  # by kind of section: what was changed in it

    # ---- the body

    @property
    def body(self) -> bytes:
        """The bytes of the body: the joined data sections, or a value that is text or binary.

        Raises:
            ValueError: the body is another value.
        """
        if "json" in self._set:
            self._body = write_json(self._json, is_plain=self._is_plain).encode()
            del self._set["json"]
        if self._body is None:
            self._body = self._read_body()
        return self._body

    @body.setter
    def body(self, value: bytes | str) -> None:
        if not isinstance(value, str | bytes | bytearray | memoryview):  # `bytes` of a number would be that many zeros
            raise TypeError(f"a body is bytes or text, not {type(value).__name__}")
        self._body = value.encode() if isinstance(value, str) else bytes(value)
        self._json = _NO_JSON
        self._set.pop("json", None)
        self._set["body"] = {}

    @property
    def json(self) -> Any:
        """The body parsed as JSON. Assign it, or call `touch_json` after changing it, to write it.

        Raises:
            ValueError: the body is no JSON.
        """
        if self._json is _NO_JSON:
            try:
                self._json, self._is_plain = read_exactly(self.body)
            except ValueError as error:
                raise ValueError(f"the body is no JSON: {error}") from None
        return self._json

    @json.setter
    def json(self, value: Any) -> None:
        self._json = value
        self.touch_json()

    def touch_json(self) -> None:
        """`json` was changed in place."""
        self._set["body"] = self._set["json"] = {}

    def json_object(self) -> dict[str, Any]:
        """The body as a JSON object.

        Raises:
            ValueError: the body is no JSON object.
        """
        found = self.json
        if not isinstance(found, dict):
            raise ValueError(  # noqa: TRY004 - the message is at fault
                f"the body is a JSON {type(found).__name__}, and an object is needed"
            )
        return found

    def _read_body(self) -> bytes:
        at, end = self.sections.body
        parts: list[bytes] = []
        while at < end:
            code = self.raw[at + 2]
            value, after = codec.decode(self.raw, at + 3)
            if code == section.DATA:
                parts.append(bytes(value))
            elif code == section.VALUE and isinstance(value, str):
                return value.encode()
            elif code == section.VALUE and (value is None or isinstance(value, bytes)):
                return bytes(value or b"")
            else:
                raise ValueError(f"the body is an AMQP {type(value).__name__}, neither bytes nor text")
            at = after
        return b"".join(parts)

    # ---- properties

    @property
    def properties(self) -> Mapping[str, Any]:
        """The properties section by the names of the specification, e.g. `message_id`; change one by `set_property`."""
        if self._fields is None:
            changed = self._set.get("properties", {})
            fields = section.decode_properties(self.raw, self.sections.properties) | changed
            self._fields = {name: value for name, value in fields.items() if value is not None}
        return self._fields

    def get_property(self, name: str) -> Any:
        """One field of the properties section, without decoding the others; None if it is not set."""
        if self._fields is not None:
            return self._fields.get(name)
        changed = self._set.get("properties", {})
        return changed[name] if name in changed else section.decode_property(self.raw, self.sections.properties, name)

    def set_property(self, name: str, value: Any) -> None:
        """Set a field of the properties section by the specification's name, or remove it (None)."""
        self._set.setdefault("properties", {})[name] = value
        self._fields = None

    @property
    def application_properties(self) -> dict[str, Any]:
        """A copy of the application properties; change one by `set_application_property`."""
        return dict(self._read_user().values())

    def set_application_property(self, name: str, value: Any) -> None:
        """Set an application property, whatever its case, or remove it (`REMOVED`)."""
        found = self._read_user()
        key = name.lower()
        spelt = found[key][0] if key in found else name
        if value is REMOVED:
            found.pop(key, None)
        else:
            found[key] = spelt, value
        self._set.setdefault("user", {})[key] = (spelt, value)

    def _read_user(self) -> dict[str, tuple[str, Any]]:
        if self._user is None:
            self._user = {}
            for name, value in section.decode_map(self.raw, self.sections.application_properties).items():
                self._user.setdefault(str(name).lower(), (str(name), value))
        return self._user

    # ---- the view of rules

    def user(self, name: str, /) -> Value | Missing:
        """See `isthmus.rules.View.user`."""
        found = self._read_user().get(name)
        return MISSING if found is None else rule_value(found[1])

    def sys(self, name: str, /) -> Value | Missing:
        """See `isthmus.rules.View.sys`."""
        if name in _FIELDS:
            return rule_text(self.properties.get(_FIELDS[name]))
        if name in _ANNOTATIONS:
            value = self._read_annotations().get(_ANNOTATIONS[name])
            return MISSING if value is None else rule_value(value)
        if name == "Size":
            return len(self.raw)
        header = self._set.get("header") or {}
        original = section.decode_header(self.raw, self.sections.header)
        if name == "DeliveryCount":
            return original.delivery_count
        if name in ("TimeToLive", "ExpiresAtUtc"):
            ttl_ms = header.get("ttl_ms", original.ttl_ms)
            if not ttl_ms:
                return MISSING
            left = timedelta(milliseconds=ttl_ms)
            enqueued = self.sys("EnqueuedTimeUtc")
            if name == "TimeToLive":
                return left
            return MISSING if isinstance(enqueued, Missing) else enqueued + left  # type: ignore[operator]  # a datetime
        return MISSING

    def _read_annotations(self) -> dict[str, Any]:
        if self._annotations is None:
            found = section.decode_map(self.raw, self.sections.message_annotations)
            self._annotations = {str(key): value for key, value in found.items()}
        return self._annotations

    def apply(self, changes: Changes) -> None:
        """Make the changes of an action."""
        for name, value in changes.user.values():
            self.set_application_property(name, value if value is REMOVED else amqp_value(value))
        for name, value in changes.sys.items():
            new = None if value is REMOVED else amqp_value(value)
            if name in _FIELDS:
                self.set_property(_FIELDS[name], new)
            elif name in _ANNOTATIONS:
                self.set_annotation(_ANNOTATIONS[name], new)
            elif name == "TimeToLive":
                self.set_time_to_live(
                    max(0, value // timedelta(milliseconds=1)) if isinstance(value, timedelta) else None
                )

    def set_annotation(self, name: str, value: Any) -> None:
        """Set a message annotation, or remove it (None)."""
        found = self._read_annotations()
        found.pop(name, None)
        if value is not None:
            found[name] = value
        self._set.setdefault("annotations", {})[name] = value

    def set_time_to_live(self, ttl_ms: int | None) -> None:
        """Set the header's ttl, or remove it (None)."""
        self._set["header"] = {"ttl_ms": ttl_ms}

    # ---- encoding

    @property
    def is_changed(self) -> bool:
        """Whether anything was changed."""
        return bool(self._set)

    def encoded(self) -> bytes:
        """The message with its changes."""
        if not self._set:
            return self.raw
        body = self.body if "body" in self._set else b""
        raw, found = self.raw, self.sections
        parts = [
            self._header() if "header" in self._set else raw[slice(*found.header)],
            raw[slice(*found.delivery_annotations)],
            self._annotations_section() if "annotations" in self._set else raw[slice(*found.message_annotations)],
            section.replace_properties(raw, found.properties, self._set["properties"])
            if "properties" in self._set
            else raw[slice(*found.properties)],
            self._user_section() if "user" in self._set else raw[slice(*found.application_properties)],
            b"\0Su" + codec.encode(body) if "body" in self._set else raw[slice(*found.body)],
            raw[slice(*found.footer)]
            if "body" not in self._set
            else b"",  # a footer may contain a digest of the old body
        ]
        return b"".join(parts)

    def _header(self) -> bytes:
        header = section.decode_header(self.raw, self.sections.header)
        return section.encode_header(header._replace(ttl_ms=self._set["header"]["ttl_ms"]))

    def _annotations_section(self) -> bytes:
        wanted = {name: (Symbol(name), value) for name, value in self._set["annotations"].items()}
        return self._changed_map(section.MESSAGE_ANNOTATIONS, self.sections.message_annotations, wanted, str, None)

    def _user_section(self) -> bytes:
        wanted = self._set["user"]
        bounds = self.sections.application_properties
        return self._changed_map(section.APPLICATION_PROPERTIES, bounds, wanted, str.lower, REMOVED)

    def _changed_map(
        self, code: int, bounds: tuple[int, int], wanted: dict[str, Any], fold: Any, removed: Any
    ) -> bytes:
        """A map section with some pairs replaced, removed or added; the others keep their encoding."""
        pairs = []
        left = dict(wanted)
        for key, value, after in section.map_items(self.raw, bounds):
            name = fold(str(codec.decode(self.raw, key)[0]))
            if name not in wanted:
                pairs.append(self.raw[key:after])
            elif name in left:
                new = left.pop(name)[1]
                if new is not removed:
                    pairs.append(self.raw[key:value] + codec.encode(new))
        pairs += [codec.encode(name) + codec.encode(new) for name, new in left.values() if new is not removed]
        if not pairs:
            return b""
        content = b"".join(pairs)
        size, count = (len(content) + 4).to_bytes(4, "big"), (2 * len(pairs)).to_bytes(4, "big")
        return bytes((0, 0x53, code)) + b"\xd1" + size + count + content
