"""isthmus.supervisor.examination.examination: the verdicts on clocks, certificates and fill."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from isthmus.supervisor.examination.examination import (
    Finding,
    Verdict,
    certificate_finding,
    clock_finding,
    fill_finding,
    worst,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("there", "verdict", "text"),
    [
        (0, Verdict.OK, "agrees within 1 s"),
        (-1, Verdict.OK, "agrees"),
        (29, Verdict.OK, "agrees within 27 s"),
        (90, Verdict.WARNING, "88 s behind the namespace"),
        (-90, Verdict.WARNING, "89 s ahead of the namespace"),
        (400, Verdict.FAULT, "398 s behind"),
    ],
)
def test_a_clock_is_judged_by_what_the_answer_proves(there: int, verdict: Verdict, text: str) -> None:
    """The answer took two seconds, and contains whole seconds: so much is no difference."""
    found = clock_finding("ewr", NOW + timedelta(seconds=there), NOW, NOW + timedelta(seconds=2))
    assert found.verdict is verdict
    assert text in found.text


def test_a_certificate_that_expires_soon_is_a_warning() -> None:
    assert certificate_finding("ewr", NOW + timedelta(days=22, hours=1), NOW).verdict is Verdict.OK
    soon = certificate_finding("ewr", NOW + timedelta(days=3, hours=1), NOW)
    assert (soon.verdict, soon.text) == (Verdict.WARNING, "expires in 3 days, on 2026-01-04")


def test_an_entity_that_is_nearly_full_is_a_warning() -> None:
    assert fill_finding("ewr", "t", 79, 100).verdict is Verdict.OK
    assert fill_finding("ewr", "t", 80 * 2**30, 100 * 2**30).text == "80% of 100 GiB"
    assert fill_finding("ewr", "t", 80, 100).verdict is Verdict.WARNING
    assert fill_finding("ewr", "t", 80, 0).verdict is Verdict.OK


def test_the_worst_finding_decides() -> None:
    found = [Finding(alias="a", subject="s", verdict=each, text="") for each in (Verdict.WARNING, Verdict.UNKNOWN)]
    assert worst(found) is Verdict.UNKNOWN
    assert worst([]) is Verdict.OK
