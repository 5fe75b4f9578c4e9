from __future__ import annotations

from typing import Any

import pytest

from isthmus.demo.example.example import is_faulty
from isthmus.demo.example.script import Outage, Script

GOOD: dict[str, Any] = {"lost": 0, "duplicated": 0, "out_of_order": 0, "verdict": "clean"}
DOUBLED = {**GOOD, "duplicated": 2, "verdict": "faulty"}


@pytest.mark.parametrize(
    ("report", "outage", "wanted"),
    [
        (GOOD, None, False),
        ({**GOOD, "verdict": "faulty"}, None, True),
        ({**GOOD, "verdict": "faulty"}, Outage("ewr", may_double=True), True),
        (DOUBLED, None, True),
        (DOUBLED, Outage("ewr"), True),
        (DOUBLED, Outage("ewr", may_double=True), False),
        ({**DOUBLED, "lost": 1}, Outage("ewr", may_double=True), True),
        ({**DOUBLED, "out_of_order": 1}, Outage("ewr", may_double=True), True),
    ],
)
def test_a_report_is_faulty_where_the_federation_allows_it_not(
    report: dict[str, Any], outage: Outage | None, wanted: bool
) -> None:
    assert is_faulty(report, Script(outage=outage)) is wanted
