"""What the administration client raises, as errors of ours."""

from __future__ import annotations

import pytest

from isthmus.connectors.administration import NamespaceUnreachableError
from isthmus.connectors.servicebus.administration.client import administration_errors


def test_an_answer_without_what_was_asked_for_is_an_error_of_the_namespace() -> None:
    """The client raises it for an empty body with status 200, and for a queue where it asks for a topic."""
    with pytest.raises(NamespaceUnreachableError), administration_errors("ewr"):
        raise AttributeError("'NoneType' object has no attribute 'content'")
