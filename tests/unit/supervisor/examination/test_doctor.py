"""What is advised of a namespace before it is asked."""

from __future__ import annotations

import pytest

from isthmus.supervisor.examination import doctor
from isthmus.topology import read


def test_a_member_of_a_pair_is_used_though_no_task_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = read(
        "isthmus: 1\nnamespaces:\n  ewr: {host: ewr.example.com}\n  jfk: {host: jfk.example.com}\n  lga: {host: lga.example.com}\n"
        "pairs:\n  contoso: {primary: ewr, secondary: jfk}\n"
    )
    monkeypatch.setattr(doctor._Examination, "service_bus", lambda _: iter(()))
    assert [(each.alias, each.text) for each in doctor.examine(federation)] == [("lga", "no task and no pair uses it")]
