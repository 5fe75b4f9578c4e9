"""What holds of a federation once all is moved, whatever was killed."""

from __future__ import annotations

from isthmus.testing.federation import FederationProcess


def check_moved(federation: FederationProcess) -> None:
    """Wait until all is moved; nothing is lost, doubled or out of order then."""
    federation.wait_moved()
    result = federation.verify()
    assert result.clean, result.to_dict()
    # What a namespace acknowledged to the publisher is there, each once.
    entered = {each.origin: each.entered for each in result.comparisons if each.origin == each.member}
    assert entered == federation.published
    assert result.total("arrived") == sum(federation.published.values())
    assert result.total("dead_lettered") == result.total("expired") == result.total("waiting") == 0
