"""What holds of a federation once all is moved, whatever was killed."""

from __future__ import annotations

from isthmus.testing.federation import FederationProcess


def check_moved(federation: FederationProcess) -> str:
    """Wait until all is moved; nothing is lost, doubled or out of order then. The figures, as an account of long counts shows them."""
    federation.wait_moved()
    result = federation.verify()
    figures = ", ".join(
        f"{name.replace('_', ' ')} {result.total(name)}" for name in ("lost", "duplicated", "out_of_order")
    )
    assert result.clean, result.to_dict()
    # What a namespace acknowledged to the publisher is there, each once.
    entered = {each.origin: each.entered for each in result.comparisons if each.origin == each.member}
    assert entered == federation.published
    assert result.total("arrived") == sum(federation.published.values())
    assert result.total("dead_lettered") == result.total("expired") == result.total("waiting") == 0
    return f"{sum(federation.published.values())} messages: {figures}"
