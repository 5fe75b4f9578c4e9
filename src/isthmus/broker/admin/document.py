"""XML documents read safely and written plainly.

What it is: a reader that turns a request body into a small tree, and helpers that write elements as text. What it is
not: a general XML library; comments and processing instructions are skipped, mixed content loses its order.
Spec: XML 1.0, Namespaces in XML 1.0.

Invariants:
    I1. A document type declaration is refused, so that no entity is ever declared, expanded or fetched.
    I2. The tree is bounded: 256 KiB of text, 32 levels, 20,000 elements.
    I3. Written documents are well-formed for any text: characters that XML cannot hold become U+FFFD.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape, quoteattr

from isthmus.errors import IsthmusError

__all__ = ["DOCUMENT_LIMIT_BYTES", "DocumentError", "Node", "element", "read", "text_element"]

DOCUMENT_LIMIT_BYTES = 256 * 1024
_DEPTH_LIMIT = 32
_NODE_LIMIT = 20_000

_UNWRITABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class DocumentError(IsthmusError):
    """A request body is no XML that the service takes."""

    code = "bad-document"


@dataclass(slots=True)
class Node:
    """An element.

    Attributes:
        namespace: the namespace's URI, "" for none.
        name: the local name.
        attributes: values by local name; namespaces of attributes do not matter in this vocabulary.
        children: the elements inside.
        text: the character data directly inside, joined.
    """

    namespace: str
    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)
    text: str = ""

    def find(self, name: str) -> Node | None:
        """The first child with this local name."""
        return next((child for child in self.children if child.name == name), None)

    def find_all(self, name: str) -> Iterator[Node]:
        """The children with this local name."""
        return (child for child in self.children if child.name == name)

    def find_text(self, name: str) -> str | None:
        """The text of the first child with this local name; None where there is no such child or it is nil."""
        child = self.find(name)
        if child is None or child.attributes.get("nil") in ("true", "1"):
            return None
        return child.text


class _Builder:
    """Receives the parser's events and enforces the bounds."""

    def __init__(self) -> None:
        self.root: Node | None = None
        self._open: list[Node] = []
        self._text: list[list[str]] = []
        self._count = 0

    def doctype(self, name: str, public_identifier: str | None, system: str | None) -> None:
        raise DocumentError("A document type declaration is not allowed.")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if len(self._open) >= _DEPTH_LIMIT or self._count > _NODE_LIMIT:
            raise DocumentError(f"The document has more than {_DEPTH_LIMIT} levels or {_NODE_LIMIT} elements.")
        namespace, name = _split(tag)
        node = Node(namespace, name, {_split(key)[1]: value for key, value in attributes.items()})
        if self._open:
            self._open[-1].children.append(node)
        else:
            self.root = node
        self._open.append(node)
        self._text.append([])

    def data(self, text: str) -> None:
        self._text[-1].append(text)

    def end(self, tag: str) -> None:
        self._open.pop().text = "".join(self._text.pop())

    def close(self) -> Node:
        if self.root is None:
            raise DocumentError("The document is empty.")
        return self.root


def read(content: bytes) -> Node:
    """Read a document's root element.

    Raises:
        DocumentError: the content is not well-formed, too large, or declares a document type.
    """
    if len(content) > DOCUMENT_LIMIT_BYTES:
        raise DocumentError(f"The document has more than {DOCUMENT_LIMIT_BYTES} bytes.")
    builder = _Builder()
    parser = ET.XMLParser(target=builder)  # noqa: S314 - a document type, where the dangers lie, is refused
    try:
        parser.feed(content)
        parser.close()
    except ET.ParseError as error:
        line, column = error.position
        raise DocumentError(f"The document is not well-formed XML at line {line}, column {column + 1}.") from None
    except (LookupError, ValueError) as error:
        raise DocumentError(f"The document's encoding cannot be read: {error}.") from None
    return builder.close()


def element(name: str, inside: str, attributes: dict[str, str] | None = None) -> str:
    """An element around markup that is already written."""
    head = name + "".join(f" {key}={quoteattr(_writable(value))}" for key, value in (attributes or {}).items())
    return f"<{head}>{inside}</{name}>" if inside else f"<{head}/>"


def text_element(name: str, text: str, attributes: dict[str, str] | None = None) -> str:
    """An element around text."""
    return element(name, escape(_writable(text), {"\r": "&#13;"}), attributes)


def _writable(text: str) -> str:
    return _UNWRITABLE.sub("\ufffd", text)


def _split(tag: str) -> tuple[str, str]:
    if tag.startswith("{"):
        namespace, _, name = tag[1:].partition("}")
        return namespace, name
    return "", tag
