"""isthmus.connectors.servicebus.administration.namespace_header."""

from __future__ import annotations

from isthmus.connectors.servicebus.administration.namespace_header import NamespaceHeaders


def test_what_was_reported_last_stays() -> None:
    reported = NamespaceHeaders()
    reported.note({})
    assert (reported.catalog_version, reported.instance) == ("", "")
    reported.note({"Isthmus-Catalog-Version": "7", "Isthmus-Instance": "a"})
    reported.note({})
    assert (reported.catalog_version, reported.instance) == ("7", "a")
