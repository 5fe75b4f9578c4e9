"""The reference page of the federation file.

What it is: Markdown generated from the declarations that the reader uses, so that every setting is documented. What it is
not: instructions; they are in the tutorial and the how-to pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from isthmus.topology.file.duration import format_ms
from isthmus.topology.file.reader import FILE_SPEC, NAMESPACE_SPEC
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.kind import KINDS
from isthmus.topology.pair.declaration import PAIR_SPEC
from isthmus.topology.pattern import AS_STEPS, PATTERNS
from isthmus.topology.pattern.part.subscription import SUBSCRIPTION_SPEC
from isthmus.topology.spark import CONTROL_SPEC, REFUSED, SPARK_SPEC
from isthmus.topology.step import STEPS
from isthmus.topology.step.divert import DIVERT_SPEC

__all__ = ["reference_page"]

_EXAMPLE = """\
isthmus: 1
namespaces:
  ewr: {connection: env:EWR_CONNECTION}
  jfk: {host: contoso-jfk.servicebus.windows.net, identity: default}
  lga: {connection: keyvault:contoso/lga-connection}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk, lga]}
"""

_HEAD = """\
# The federation file

<!-- Written by `make docs` from src/isthmus/topology; `make check` fails when it is not up to date. -->

One YAML file declares the namespaces and the replication tasks between them. `isthmus lint` reports every fault
at once, with line, column and a correction; `isthmus schema` prints its JSON Schema for editors;
`isthmus init PATTERN` writes a commented file to start from.

```yaml
{example}```

A key that this version does not know is a fault, never ignored; so is one that is planned but not available yet. The file does not contain
secrets: it refers to them. YAML anchors, aliases and merge keys (`<<`) can be used.
"""

_STEPS = """\
## steps

A task of any pattern can declare `steps`, which process the messages of each of its routes, in order. A step that fails on a message
sets that message aside at its source, and the route continues. How to use them:
[change messages on the way](../how-to/change-messages-on-the-way.md).

```yaml
steps:
  - validate: {schema: flight.schema.json, on_failure: dead-letter}
  - filter: "carrier = 'UA'"
  - set: "SET priority = 'high'"
  - enrich: {from: airports.csv, on: dest = faa, columns: [name, lat]}
  - encrypt: {key: file:flight.key, algorithm: A256GCM}
```
"""

_TABLE = "| setting | value | default | since |\n| --- | --- | --- | --- |"


def reference_page() -> str:
    """The page's text."""
    parts = [
        _HEAD.format(example=_EXAMPLE),
        _section("## Top of the file", FILE_SPEC),
        _section("## namespaces", NAMESPACE_SPEC),
        *(
            _section(f"### kind: {kind.name}", Spec(kind.name, f"How to reach {kind.title}.", kind.settings))
            for kind in KINDS.values()
            if kind.settings
        ),
        "## tasks\n\nEvery task has a `pattern`; the other settings depend on it. "
        + ", ".join(f"{name} is the step `{step}`" for name, step in AS_STEPS.items()).capitalize()
        + " of a task of any pattern.\n",
        *(section for pattern in PATTERNS.values() for section in _pattern(pattern.spec)),
        _section("#### subscriptions", SUBSCRIPTION_SPEC),
        _STEPS,
        *(_section(f"### step: {kind.spec.name}", kind.spec) for kind in STEPS.values()),
        _section("### divert_to", DIVERT_SPEC),
        _section("## spark", SPARK_SPEC),
        "Refused in `settings`:\n\n" + "\n".join(f"- `{name}`: {reason}." for name, reason in REFUSED.items()) + "\n",
        _section("### control", CONTROL_SPEC),
        _section("## pairs", PAIR_SPEC)
        + "\nHow to use them: [recover from a disaster](../how-to/recover-from-a-disaster.md).\n",
    ]
    return "\n".join(parts)


def _pattern(spec: Spec) -> Iterator[str]:
    yield _section(f"### pattern: {spec.name}", spec)
    for setting in spec.settings:
        if setting.inner is not None and setting.available:
            yield _section(f"#### {spec.name}: {setting.name}", setting.inner)


def _section(title: str, spec: Spec) -> str:
    available = [setting for setting in spec.settings if setting.available]
    planned = [setting.name for setting in spec.settings if not setting.available and not setting.refusal]
    lines = [title, "", spec.description, "", *_table(available), ""]
    for setting in available:
        lines += [f"- **`{setting.name}`**: {setting.description}" + _planned(setting)]
    if planned:
        lines += ["", "Not available yet: " + ", ".join(f"`{name}`" for name in planned) + "."]
    return "\n".join(lines) + "\n"


def _table(settings: Iterable[Setting]) -> Iterator[str]:
    yield _TABLE
    for setting in settings:
        default = "required" if setting.required else f"`{setting.show(setting.default)}`" if setting.default else ""
        yield f"| `{setting.name}` | {_value(setting)} | {default} | {setting.since} |"


def _value(setting: Setting) -> str:
    if setting.kind is Kind.CHOICE:
        return " or ".join(f"`{choice}`" for choice in setting.choices)
    show: Callable[[Any], str] = format_ms if setting.kind is Kind.DURATION else str
    text: str = setting.kind.value
    if setting.minimum is not None and setting.maximum is not None:
        text += f", {show(setting.minimum)} to {show(setting.maximum)}"
    if setting.may_be_off:
        text += ", or `off`"
    return text + (f", e.g. `{setting.example}`" if setting.example else "")


def _planned(setting: Setting) -> str:
    return _not_yet(setting.planned)


def _not_yet(names: Iterable[str]) -> str:
    listed = ", ".join(f"`{each}`" for each in names)
    return f" Not available yet: {listed}." if listed else ""
