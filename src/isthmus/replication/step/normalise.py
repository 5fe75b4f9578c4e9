"""The step `normalise`: conversion of a body to another encoding.

What it is: readers and writers of JSON, Avro, XML and CSV, over the values of JSON. What it is not: a mapping of fields; that is `map`.
Specification: RFC 8259; Apache Avro 1.11, "Binary encoding"; RFC 4180; W3C XML 1.0, without DTD.

Invariants:
    I1. An XML document with a DTD is refused: entities can make a small body a large one.
    I2. A value that the other encoding cannot represent is refused, or kept: none is omitted. Avro's floating-point numbers
        round; a number beyond their range is refused.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID
from xml.etree import ElementTree as ET
from xml.parsers import expat

from isthmus.bridge.delivery_event import Disposition
from isthmus.message.json_number import JsonNumber, exceeds_float, read_json, write_json
from isthmus.replication.step.avro import check_datum
from isthmus.replication.step.base import MessageStep, Settings
from isthmus.replication.step.message.message import StepMessage
from isthmus.replication.step.watched_file import WatchedFile
from isthmus.topology.step.material import load_avro_schema

__all__ = ["open_normalise", "read_csv", "read_xml", "write_csv", "write_xml"]

CONTENT_TYPES = {"json": "application/json", "avro": "avro/binary", "xml": "application/xml", "csv": "text/csv"}
# Characters of XML 1.0; a carriage return is read as a line feed.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_ATTRIBUTE = re.compile(r"[^\W\d][\w.-]*(:[^\W\d][\w.-]*)?")


def open_normalise(settings: Settings) -> MessageStep:
    """See `isthmus.topology.step.body.NormaliseStep`."""
    read, write = _reader(settings), _writer(settings)
    content_type = CONTENT_TYPES[settings["to"]]

    def step(message: StepMessage) -> Disposition | None:
        message.body = write(read(message.body))
        message.set_property("content_type", content_type)
        return None

    return step


def _reader(settings: Settings) -> Callable[[bytes], Any]:
    columns = settings.get("columns")
    match settings["from"]:
        case "avro":
            from fastavro import schemaless_reader

            schema = WatchedFile(settings["schema"], load_avro_schema)

            def read(body: bytes) -> Any:
                data = io.BytesIO(body)
                value = schemaless_reader(data, schema.get(), None)
                if data.read(1):
                    raise ValueError("bytes follow the datum")
                return value

            return read
        case "xml":
            return read_xml
        case "csv":
            return lambda body: read_csv(body, columns)
        case _:
            return read_json


def _writer(settings: Settings) -> Callable[[Any], bytes]:
    columns = settings.get("columns")
    match settings["to"]:
        case "avro":
            from fastavro import schemaless_writer

            schema = WatchedFile(settings["schema"], load_avro_schema)

            def write(value: Any) -> bytes:
                out, parsed = io.BytesIO(), schema.get()
                if exceeds_float(value):
                    raise ValueError("it has a number beyond the range of Avro's types")
                check_datum(value, parsed)
                schemaless_writer(out, parsed, value, strict_allow_default=True)  # a missing field is also a field
                return out.getvalue()

            return write
        case "xml":
            return lambda value: write_xml(value, settings["root"])
        case "csv":
            return lambda value: write_csv(value, columns)
        case _:
            return _write_json if settings["from"] == "json" else _write_plain_json


def _write_json(value: Any) -> bytes:
    return write_json(value, encode=_encode).encode()


def _write_plain_json(value: Any) -> bytes:
    return _encode(value).encode()


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_json_value, allow_nan=False).encode


# ---- CSV


def read_csv(body: bytes, columns: list[str] | None) -> Any:
    """The rows of a body as objects of texts; one row without a header line is one object."""
    rows = list(csv.reader(io.StringIO(body.decode("utf-8-sig")), strict=True))
    names = columns or (rows.pop(0) if rows else [])
    if twice := next((name for at, name in enumerate(names) if name in names[:at]), None):
        raise ValueError(f"two columns are named {twice!r}")
    wrong = next((row for row in rows if len(row) != len(names)), None)
    if wrong is not None:
        raise ValueError(f"a row has {len(wrong)} values, and there are {len(names)} columns")
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return found[0] if columns and len(found) == 1 else found


def write_csv(value: Any, columns: list[str] | None) -> bytes:
    """An object, or a list of them, as rows; with a header line if the columns are not given."""
    rows = value if isinstance(value, list) else [value]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("CSV is written from an object or a list of objects")
    names = columns or list(dict.fromkeys(name for row in rows for name in row))
    more = {name: None for row in rows for name in row if columns and name not in columns}
    if more:
        raise ValueError(f"there is no column for the field {', '.join(map(repr, more))}")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    if not columns:
        writer.writerow(names)
    for row in rows:
        writer.writerow([_csv_cell(row.get(name)) for name in names])
    return out.getvalue().encode()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return _write_json(value).decode()
    return "" if value is None else value if isinstance(value, str | int) else _scalar(value)


def _scalar(value: Any) -> Any:
    """A number, or another value that is no text.

    Raises:
        ValueError: the number does not exist in JSON.
    """
    if isinstance(value, JsonNumber):
        return value.text
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"it has the number {value}, which JSON does not have")
    return value if isinstance(value, int | float) else _json_value(value)


# ---- XML


def read_xml(body: bytes) -> Any:
    """The content of a document's element: attributes are `@name`, text beside them `#text`, repeated elements lists.

    Raises:
        ValueError: the text is no XML, or has a DTD.
    """
    builder = ET.TreeBuilder()
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = _refuse_dtd
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise ValueError(f"the body is no XML: {error}") from None
    return _content(builder.close())


def _refuse_dtd(*_: object) -> None:
    raise ValueError("the XML document has a DTD")


def _content(element: ET.Element) -> Any:
    found: dict[str, Any] = {f"@{name}": value for name, value in element.attrib.items()}
    for child in element:
        value = _content(child)
        if child.tag not in found:
            found[child.tag] = value
        elif isinstance(found[child.tag], list):
            found[child.tag].append(value)
        else:
            found[child.tag] = [found[child.tag], value]
    parts = (part.strip() for part in (element.text, *(child.tail for child in element)) if part)
    text = " ".join(part for part in parts if part)
    if not found:
        return text or None
    if text:
        found["#text"] = text
    return found


def write_xml(value: Any, root: str) -> bytes:
    """A document; see `read_xml`."""
    text: bytes = ET.tostring(_element(root, value), encoding="utf-8", xml_declaration=True)
    return text


def _element(name: str, value: Any) -> ET.Element:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an XML element")
    element = ET.Element(name)
    if not isinstance(value, dict):
        if isinstance(value, list):
            element.extend([_element("item", each) for each in value])  # within a generator the error would change
        else:
            element.text = _xml_text(value)
        return element
    for key, each in value.items():
        if key == "#text":
            element.text = _xml_text(each)
        elif key.startswith("@"):
            if not _ATTRIBUTE.fullmatch(key[1:]):
                raise ValueError(f"{key[1:]!r} is no name of an XML attribute")
            element.set(key[1:], _xml_text(each) or "")
        else:
            element.extend([_element(key, one) for one in (each if isinstance(each, list) else [each])])
    return element


def _xml_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return str(_scalar(value))
    found = _NO_XML.search(value)
    if found is not None:
        raise ValueError(f"it has the character U+{ord(found[0]):04X}, which XML cannot contain")
    return value
