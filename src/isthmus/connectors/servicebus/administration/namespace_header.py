"""What a namespace says of itself with each answer.

What it is: the headers by which our own namespaces tell the version of their catalog and which start of them answers. What it is not: part
of the service's API; Azure's namespaces tell neither.
Spec: docs/explanation/protocol.md, Administration.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["NamespaceHeaders"]

_CATALOG_VERSION = "Isthmus-Catalog-Version"
_INSTANCE = "Isthmus-Instance"


class NamespaceHeaders:
    """Those of the last answers of one namespace.

    Attributes:
        catalog_version: what the last answer that told one said of all descriptions: another value whenever one of them may
            be another than before. Empty where the namespace tells none.
        instance: which start of which namespace the last answer that told it came from. Empty as before.
    """

    def __init__(self) -> None:
        self.catalog_version = ""
        self.instance = ""

    def note(self, headers: Mapping[str, str]) -> None:
        """Take them from an answer."""
        self.catalog_version = headers.get(_CATALOG_VERSION, self.catalog_version)
        self.instance = headers.get(_INSTANCE, self.instance)
