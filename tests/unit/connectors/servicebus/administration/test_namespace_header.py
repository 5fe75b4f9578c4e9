"""isthmus.connectors.servicebus.administration.namespace_header."""

from __future__ import annotations

from isthmus.connectors.servicebus.administration.namespace_header import NamespaceHeaders


def test_what_was_told_last_stays() -> None:
    told = NamespaceHeaders()
    told.note({})
    assert (told.catalog_version, told.instance) == ("", "")
    told.note({"Isthmus-Catalog-Version": "7", "Isthmus-Instance": "a"})
    told.note({})
    assert (told.catalog_version, told.instance) == ("7", "a")
