"""The namespace's headers in each answer.

What it is: the headers with which our own namespaces report the version of their catalog and their instance. What it is not: part
of the service's API; Azure's namespaces report neither.
Spec: docs/explanation/protocol.md, Administration.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["NamespaceHeaders"]

_CATALOG_VERSION = "Isthmus-Catalog-Version"
_INSTANCE = "Isthmus-Instance"


class NamespaceHeaders:
    """The values of the last answers of one namespace.

    Attributes:
        catalog_version: the version in the last answer that had one: it changes whenever any description may have
            changed. Empty where the namespace reports none.
        instance: the start of the namespace that gave the last answer with this header. Empty where it reports none.
    """

    def __init__(self) -> None:
        self.catalog_version = ""
        self.instance = ""

    def note(self, headers: Mapping[str, str]) -> None:
        """Reads the headers of an answer."""
        self.catalog_version = headers.get(_CATALOG_VERSION, self.catalog_version)
        self.instance = headers.get(_INSTANCE, self.instance)
