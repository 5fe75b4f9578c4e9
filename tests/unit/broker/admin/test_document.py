from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.broker.admin.document import DOCUMENT_LIMIT_BYTES, DocumentError, element, read, text_element


def test_reads_by_namespace_whatever_the_prefixes() -> None:
    plain = read(b'<a xmlns="urn:x" xmlns:i="urn:i"><b i:type="T">1</b><b>2</b></a>')
    prefixed = read(b'<n:a xmlns:n="urn:x" xmlns:p4="urn:i"><n:b p4:type="T">1</n:b><n:b>2</n:b></n:a>')
    assert plain == prefixed
    assert plain.namespace == "urn:x"
    assert [(node.text, node.attributes) for node in plain.find_all("b")] == [("1", {"type": "T"}), ("2", {})]
    assert plain.find_text("b") == "1"
    assert plain.find_text("c") is None


def test_nil_is_absent() -> None:
    assert read(b'<a xmlns:i="urn:i"><b i:nil="true"/><c/></a>').find_text("b") is None
    assert read(b"<a><c/></a>").find_text("c") == ""


BILLION = b'<!DOCTYPE a [<!ENTITY x "xxxxxxxxxx"><!ENTITY y "&x;&x;&x;&x;&x;&x;">]><a>&y;</a>'
EXTERNAL = b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>'


@pytest.mark.parametrize(
    "content", [BILLION, EXTERNAL, b"<!DOCTYPE a><a/>", b'<!DOCTYPE a SYSTEM "http://h/x.dtd"><a/>']
)
def test_i1_document_types_are_refused(content: bytes) -> None:
    with pytest.raises(DocumentError, match="document type"):
        read(content)


@pytest.mark.parametrize(
    "content",
    [
        b"<a>" * 40 + b"</a>" * 40,
        b"<a>" + b"<b/>" * 20_001 + b"</a>",
        b"<a>" + b"x" * DOCUMENT_LIMIT_BYTES + b"</a>",
    ],
)
def test_i2_bounds(content: bytes) -> None:
    with pytest.raises(DocumentError, match="more than"):
        read(content)


def test_i2_many_pieces_of_text_are_joined_in_linear_time() -> None:
    content = b"<a>" + b"&amp;" * 50_000 + b"</a>"
    started = time.process_time()  # what others take of the processor does not count
    assert read(content).text == "&" * 50_000
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<a",
        b"text",
        b"<a>&x;</a>",
        b"<a/><b/>",
        b"\xff",
        b'<?xml version="1.0" encoding="utf-99"?><a/>',
        b"<p:a/>",
    ],
)
def test_what_is_not_xml_is_refused(content: bytes) -> None:
    with pytest.raises(DocumentError):
        read(content)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_document_or_refused(content: bytes) -> None:
    with contextlib.suppress(DocumentError):
        read(content)


@given(st.text(max_size=100))
def test_i3_any_text_is_written_well_formed(text: str) -> None:
    node = read(element("a", text_element("b", text, {"c": text})).encode("utf-8", "replace"))
    if text.isprintable():
        assert node.find_text("b") == text
