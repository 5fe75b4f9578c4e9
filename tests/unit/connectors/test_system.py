"""isthmus.connectors.system"""

from __future__ import annotations

import pytest

from isthmus.connectors.system import SYSTEMS, LogSystem, system_of
from isthmus.topology.kind import KINDS


@pytest.mark.parametrize("kind", [kind for kind in SYSTEMS if KINDS[kind].is_log])
def test_every_log_shows_all_that_a_verification_asks(kind: str) -> None:
    assert isinstance(system_of(kind), LogSystem)
