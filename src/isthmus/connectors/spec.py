"""The options of a connector, declared once.

What it is: the parsing of a connector's options (Spark's are strings, with keys of any case) with the same `Spec` and
`Setting` declarations as the federation file, and the scrubbing of their secrets. What it is not: the
declarations' kinds and checks (`isthmus.topology.file.setting`), or the declarations of a connector.

Invariants:
    I1. One error names all wrong options.
    I2. No value of a secret option is in an error or in the result of `shown`; references are not secrets and are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isthmus.connectors.secret import HIDDEN, scrub
from isthmus.errors import ConfigError, Fault
from isthmus.topology.file.document import suggest
from isthmus.topology.file.reference import SecretError, SecretReference
from isthmus.topology.file.setting import Kind, Setting, SettingError, Spec

__all__ = ["Kind", "Setting", "SettingError", "Spec", "parse_options", "shown"]


def parse_options(
    spec: Spec,
    options: Mapping[str, str],
    *,
    ignore: tuple[str, ...] = (),
    elsewhere: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The values of a connector's options, with defaults for those that are missing.

    Args:
        spec: the connector's declaration.
        options: as given; keys are compared without case and underscores. An empty text selects the default where that is empty too.
        ignore: keys of another component, e.g. Spark's own `path`.
        elsewhere: keys of another part of this connector, and the hint for each.

    Returns:
        Setting name → parsed value (see `Setting.parse`), or its default.

    Raises:
        ConfigError: with a fault for each unknown, unavailable, missing or malformed option.
    """
    names = {_folded(setting.name): setting for setting in spec.settings}
    ignored = {_folded(name) for name in ignore}
    hints = {_folded(name): hint for name, hint in (elsewhere or {}).items()}
    values: dict[str, Any] = {setting.name: setting.default for setting in spec.settings if setting.available}
    given: set[str] = set()
    faults: list[Fault] = []
    for key, text in options.items():
        setting = names.get(_folded(key))
        if setting is None:
            if _folded(key) not in ignored:
                hint = hints.get(_folded(key)) or suggest(key, spec.names())
                faults.append(Fault(f"{spec.name} has no option {key!r}", hint))
            continue
        if text == "" and setting.default == "":
            continue
        given.add(setting.name)
        if not setting.available:
            faults.append(Fault(f"{spec.name}: {setting.name} is not available yet", "remove it"))
            continue
        try:
            values[setting.name] = setting.parse(text)
        except SettingError as wrong:
            faults.append(Fault(f"{spec.name}: {wrong.message}", wrong.hint))
    faults += [
        Fault(f"{spec.name} needs {setting.name}", f"write {setting.name}={setting.example}")
        for setting in spec.settings
        if setting.required and setting.name not in given
    ]
    if faults:
        raise ConfigError(faults)
    return values


def shown(spec: Spec, options: Mapping[str, str]) -> dict[str, str]:
    """Options for a log or a page: secrets are hidden, references kept."""
    names = {_folded(setting.name): setting for setting in spec.settings}
    return {key: _shown(names.get(_folded(key)), value) for key, value in options.items()}


def _folded(name: str) -> str:
    return name.lower().replace("_", "")


def _shown(setting: Setting | None, value: str) -> str:
    if setting is None or not setting.secret:
        return scrub(value)
    try:
        return str(SecretReference.parse(value))
    except SecretError:
        return HIDDEN
