"""Settings, declared once.

What it is: the declaration of one setting (name, kind, default, limits, description, version) and of the sets of settings
of a connector, a namespace or a pattern. Parsing, lint, JSON Schema, reference pages, starter files and the
scrubbing of secrets all use these declarations. What it is not: the readers.

Invariants:
    I1. A value that `Setting.parse` accepts is also valid by the JSON Schema of the same setting.
    I2. A setting or choice that is planned but not implemented is declared unavailable and refused, never ignored.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from isthmus.topology.file.duration import format_ms, parse_ms
from isthmus.topology.file.reference import SecretError, SecretReference

__all__ = ["Kind", "Setting", "Spec", "SettingError"]

# Limits of Service Bus (quotas): 260 characters for a queue's or topic's path, 50 for a subscription's or rule's name.
ENTITY_NAME_LIMIT = 260
SUBSCRIPTION_NAME_LIMIT = 50

_ENTITY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9_])?")
_SUBSCRIPTION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_ALIAS = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?")
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*(?::\d{1,5})?"
)
_INTEGER = re.compile(r"[+-]?\d{1,18}")
_TRUE, _FALSE = {"true", "yes", "on"}, {"false", "no", "off"}


class SettingError(ValueError):
    """A value does not fit its setting.

    Attributes:
        message: the fault; never repeats a value that may be a secret.
        hint: what to write instead.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Kind(StrEnum):
    """The type of a setting's value."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    DURATION = "duration"
    CHOICE = "choice"
    SQL = "SQL"
    ALIAS = "alias"
    ALIASES = "list of aliases"
    NAMES = "list of names"
    ENTITY = "entity name"
    SUBSCRIPTION = "subscription name"
    SUBSCRIPTIONS = "list or mapping of subscriptions"
    MAPPING = "mapping"
    TEXTS = "list of texts"
    PAIRS = "mapping of names to texts"
    STEPS = "list of steps"
    RATE = "rate, or list of rates"
    LIST = "list of mappings"
    TREE = "list, or mapping of aliases to lists"
    PROPERTY = "property name"
    REFERENCE = "reference to a secret"
    HOST = "host name"
    PATH = "file path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting.

    Attributes:
        name: as written in the file or the option.
        kind: the type of its value.
        description: one or more sentences for the reference page and the editor.
        default: the parsed value if it is not written; None if there is none.
        required: whether a file without it has a fault.
        secret: whether its value is a secret, or a reference to one, and is scrubbed from every output.
        choices: the values of a CHOICE.
        planned: values of a CHOICE that are known but refused as not available yet.
        minimum: least INTEGER, NUMBER or DURATION (milliseconds).
        maximum: greatest INTEGER, NUMBER or DURATION (milliseconds).
        may_be_off: whether a DURATION may be `off` (parsed as 0).
        example: a value to show; also what a hint proposes.
        since: the version of isthmus that introduced it.
        available: False for a setting that is known but refused as not available yet.
        refusal: the reason why an expected setting is never allowed here, and the alternative; with `available` False.
        inner: the settings of a MAPPING, or of each mapping of a LIST.
    """

    name: str
    kind: Kind
    description: str
    default: Any = None
    required: bool = False
    secret: bool = False
    choices: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    may_be_off: bool = False
    example: str = ""
    since: str = "0.1"
    available: bool = True
    refusal: tuple[str, str] | None = None
    inner: Spec | None = None

    def parse(self, text: str) -> Any:
        """The value of a scalar's text.

        Returns:
            str; int for INTEGER; float for NUMBER; milliseconds for DURATION; bool; `SecretReference` for REFERENCE.

        Raises:
            SettingError: the text is no value of this setting.
        """
        return _PARSERS.get(self.kind, _parse_text)(self, text)

    def show(self, value: Any) -> str:
        """A parsed value as it is written in the file."""
        if value is None:
            return ""
        if self.kind is Kind.DURATION:
            return "off" if value == 0 and self.may_be_off else format_ms(value)
        if self.kind is Kind.BOOLEAN:
            return "true" if value else "false"
        return str(value)


@dataclass(frozen=True, slots=True)
class Spec:
    """The settings of one thing.

    Attributes:
        name: the thing, e.g. `namespace` or `all-active`.
        description: a sentence about it.
        settings: in the order in which a reference page shows them.
    """

    name: str
    description: str
    settings: tuple[Setting, ...]

    def get(self, name: str) -> Setting | None:
        """The setting of this name, or None."""
        return next((setting for setting in self.settings if setting.name == name), None)

    def names(self) -> tuple[str, ...]:
        """The names of the available settings."""
        return tuple(setting.name for setting in self.settings if setting.available)


def _parse_text(setting: Setting, text: str) -> str:
    if not text.strip():
        raise SettingError(f"{setting.name} is empty", _example(setting))
    return text


def _parse_integer(setting: Setting, text: str) -> int:
    if not _INTEGER.fullmatch(text.replace("_", "")):
        raise SettingError(f"{setting.name} is not a whole number", _example(setting))
    return int(_within(setting, int(text.replace("_", "")), str))


def _parse_number(setting: Setting, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise SettingError(f"{setting.name} is not a number", _example(setting))
    return _within(setting, value, str)


def _parse_boolean(setting: Setting, text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise SettingError(f"{setting.name} is neither true nor false", f"write {setting.name}: true or false")
    return text.lower() in _TRUE


def _parse_duration(setting: Setting, text: str) -> int:
    if setting.may_be_off and text.lower() in _FALSE:
        return 0
    try:
        duration_ms = parse_ms(text)
    except ValueError:
        raise SettingError(f"{setting.name} is not a duration with a unit", _example(setting)) from None
    return int(_within(setting, duration_ms, format_ms))


def _within(setting: Setting, value: float, show: Any) -> float:
    if setting.minimum is not None and value < setting.minimum:
        raise SettingError(
            f"{setting.name} is below its least value", f"write {setting.name}: {show(setting.minimum)} or more"
        )
    if setting.maximum is not None and value > setting.maximum:
        raise SettingError(
            f"{setting.name} is above its greatest value", f"write {setting.name}: {show(setting.maximum)} or less"
        )
    return value


def _parse_choice(setting: Setting, text: str) -> str:
    if text in setting.choices:
        return text
    if text in setting.planned:
        raise SettingError(
            f"{setting.name}: {text} is not available yet", f"write {setting.name}: {' or '.join(setting.choices)}"
        )
    raise SettingError(f"{setting.name} has an unknown value", f"write {setting.name}: {' or '.join(setting.choices)}")


def _parse_name(pattern: re.Pattern[str], limit: int, allowed: str) -> Any:
    def parse(setting: Setting, text: str) -> str:
        if not pattern.fullmatch(text):
            raise SettingError(f"{setting.name}: the name is malformed", f"write {allowed}")
        if len(text) > limit:
            raise SettingError(f"{setting.name}: the name has {len(text)} characters", f"write at most {limit}")
        return text

    return parse


def _parse_reference(setting: Setting, text: str) -> SecretReference:
    try:
        return SecretReference.parse(text)
    except SecretError as error:
        if error.reference == "connection":
            raise SettingError(f"{setting.name}: {error.reason}", f"write {setting.name}: {setting.example}") from None
        raise SettingError(f"{setting.name}: {error.reason}", error.hint) from None


def _parse_host(setting: Setting, text: str) -> str:
    if not _HOST.fullmatch(text):
        raise SettingError(f"{setting.name} is not a host name", _example(setting))
    return text.lower()


def _parse_property(setting: Setting, text: str) -> str:
    if not text.strip() or len(text) > 128 or any(not character.isprintable() for character in text):
        raise SettingError(f"{setting.name} is not a property's name", _example(setting))
    if text.lower().startswith("repl-") or text.lower() == "rulename":
        raise SettingError(f"{setting.name}: this property's name is taken by isthmus or the broker", _example(setting))
    return text


def _example(setting: Setting) -> str:
    return f"write {setting.name}: {setting.example}" if setting.example else ""


_LETTERS = "letters, digits, '.', '-' and '_', beginning with a letter or digit"
_PARSERS: dict[Kind, Any] = {
    Kind.INTEGER: _parse_integer,
    Kind.NUMBER: _parse_number,
    Kind.BOOLEAN: _parse_boolean,
    Kind.DURATION: _parse_duration,
    Kind.CHOICE: _parse_choice,
    Kind.ENTITY: _parse_name(_ENTITY, ENTITY_NAME_LIMIT, _LETTERS),
    Kind.SUBSCRIPTION: _parse_name(_SUBSCRIPTION, SUBSCRIPTION_NAME_LIMIT, _LETTERS),
    Kind.ALIAS: _parse_name(_ALIAS, SUBSCRIPTION_NAME_LIMIT, "letters, digits, '-' and '_'"),
    Kind.ALIASES: _parse_name(_ALIAS, SUBSCRIPTION_NAME_LIMIT, "letters, digits, '-' and '_'"),
    Kind.REFERENCE: _parse_reference,
    Kind.HOST: _parse_host,
    Kind.PROPERTY: _parse_property,
}
