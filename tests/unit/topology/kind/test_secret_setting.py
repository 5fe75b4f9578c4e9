"""A secret that is written into the file itself is refused, for every setting of every kind, and no text repeats it."""

from __future__ import annotations

import pytest

from isthmus.errors import ConfigError
from isthmus.topology import lint, read
from isthmus.topology.file.setting import Kind
from isthmus.topology.kind import KINDS
from isthmus.topology.linter import warnings

PLANTED = "hunter2-planted+secret/key=="
CASES = [(kind.name, each.name) for kind in KINDS.values() for each in kind.settings if each.kind is Kind.REFERENCE]
FORMS = (
    PLANTED,
    f"Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=root;SharedAccessKey={PLANTED}",
    f"HostName=hub.azure-devices.net;SharedAccessKeyName=root;SharedAccessKey={PLANTED}",
    f"AccountName=flights;AccountKey={PLANTED};EndpointSuffix=core.windows.net",
    f"https://flights.queue.core.windows.net?sig={PLANTED}",
    f"env:{PLANTED}",
)


def test_every_kind_with_a_secret_is_tried() -> None:
    assert {kind for kind, _ in CASES} == set(KINDS) - {"servicebus"}


@pytest.mark.parametrize("form", range(len(FORMS)))
@pytest.mark.parametrize(("kind", "setting"), CASES)
def test_a_literal_secret_is_refused_and_not_repeated(kind: str, setting: str, form: int) -> None:
    written = [f"kind: {kind}", f'{setting}: "{FORMS[form]}"']
    written += [
        f"{each.name}: {each.example}"
        for each in KINDS[kind].settings
        if each.required and each.name != setting and each.kind is not Kind.REFERENCE
    ]
    text = (
        f"isthmus: 1\nnamespaces:\n  ewr: {{connection: env:EWR}}\n  far: {{{', '.join(written)}}}\n"
        "tasks:\n  t: {pattern: copy, topic: t, source: ewr, target: far}\n"
    )
    with pytest.raises(ConfigError) as raised:
        read(text)
    reported = [str(raised.value), repr(raised.value), *map(repr, lint(text)), *map(repr, warnings(text))]
    assert not [each for each in reported if "hunter2" in each]
