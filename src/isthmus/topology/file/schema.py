"""JSON Schema of the federation file, for editors.

What it is: a schema (draft 2020-12) generated from the declarations that the reader uses. What it is not: as strict as
lint, which also reports what no schema can: line and column, undeclared aliases, rules that never match.

Invariants:
    I1. A file without faults is valid by the schema.
"""

from __future__ import annotations

from typing import Any

from isthmus.topology.file.reader import FILE_SPEC, KIND_SETTING, NAMESPACE_SPEC, VERSION
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.kind import KINDS, SERVICE_BUS
from isthmus.topology.pair.declaration import PAIR_SPEC
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.pattern.part.subscription import SUBSCRIPTION_SPEC
from isthmus.topology.rate import RATE_PART
from isthmus.topology.spark import CONTROL_SPEC, REFUSED, SPARK_SPEC
from isthmus.topology.step import STEPS, StepKind

__all__ = ["federation_schema", "setting_schema", "spec_schema"]

_DURATION = r"^((\d+(ms|[dhms]) ?)+|P(\d+D)?(T(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?)$"
_REFERENCE = r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:[^#]+(#.*)?|keyvault:[A-Za-z][A-Za-z0-9.-]*/[A-Za-z0-9-]+)$"


def federation_schema() -> dict[str, Any]:
    """The schema of a whole federation file."""
    tasks = [_task_schema(pattern.spec) for pattern in PATTERNS.values()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "isthmus federation file",
        "description": FILE_SPEC.description,
        "type": "object",
        "required": [setting.name for setting in FILE_SPEC.settings if setting.required],
        "properties": {
            "isthmus": {"const": VERSION, "description": _described(FILE_SPEC, "isthmus")},
            "namespaces": {
                "type": "object",
                "description": _described(FILE_SPEC, "namespaces"),
                "additionalProperties": _namespace_schema(),
            },
            "tasks": {
                "type": "object",
                "description": _described(FILE_SPEC, "tasks"),
                "additionalProperties": tasks[0] if len(tasks) == 1 else {"oneOf": tasks},
            },
            "spark": _spark_schema(),
            "pairs": {
                "type": "object",
                "description": _described(FILE_SPEC, "pairs"),
                "additionalProperties": spec_schema(PAIR_SPEC),
            },
        },
        "anyOf": [{"required": ["tasks"]}, {"required": ["pairs"]}],
        "patternProperties": {"^x-": {}},
        "additionalProperties": False,
    }


def spec_schema(spec: Spec) -> dict[str, Any]:
    """The schema of one mapping."""
    return {
        "type": "object",
        "description": spec.description,
        "required": [setting.name for setting in spec.settings if setting.required],
        "properties": {setting.name: setting_schema(setting) for setting in spec.settings if setting.available},
        "additionalProperties": False,
    }


def setting_schema(setting: Setting) -> dict[str, Any]:
    """The schema of one setting's value."""
    schema = _kind_schema(setting)
    schema["description"] = setting.description
    if setting.default is not None:
        schema["default"] = (
            setting.default if setting.kind in (Kind.INTEGER, Kind.NUMBER) else setting.show(setting.default)
        )
    return schema


def _kind_schema(setting: Setting) -> dict[str, Any]:
    match setting.kind:
        case Kind.INTEGER | Kind.NUMBER:
            limits = {"minimum": setting.minimum, "maximum": setting.maximum}
            return {"type": setting.kind.value} | {name: limit for name, limit in limits.items() if limit is not None}
        case Kind.BOOLEAN:
            return {"type": "boolean"}
        case Kind.DURATION:
            text = {"type": "string", "pattern": _DURATION}
            return {"anyOf": [text, {"enum": ["off", False]}]} if setting.may_be_off else text
        case Kind.CHOICE:
            return {"enum": list(setting.choices)}
        case Kind.REFERENCE:
            return {"type": "string", "pattern": _REFERENCE}
        case Kind.ALIASES:
            return {
                "type": "array",
                "items": {"type": ["string", "number", "boolean"]},
                "uniqueItems": True,
                "minItems": int(setting.minimum or 2),
            }
        case Kind.NAMES:
            return {
                "type": "array",
                "items": {"type": ["string", "number", "boolean"]},
                "uniqueItems": True,
                "minItems": 1,
            }
        case Kind.TEXTS:
            return {"type": "array", "items": {"type": ["string", "number", "boolean"]}, "minItems": 1}
        case Kind.PAIRS:
            return {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
        case Kind.STEPS:
            return {"type": "array", "items": {"anyOf": [_step_schema(kind) for kind in STEPS.values()]}}
        case Kind.RATE:
            return {"anyOf": [{"type": "string"}, {"type": "array", "items": spec_schema(RATE_PART), "minItems": 1}]}
        case Kind.SUBSCRIPTIONS:
            inner = spec_schema(SUBSCRIPTION_SPEC) | {"type": ["object", "null"]}
            names = {"type": "array", "items": {"type": ["string", "number", "boolean"]}}
            return {"anyOf": [names, {"type": "object", "additionalProperties": inner}]}
        case Kind.LIST:
            return {"type": "array", "items": _inner_schema(setting), "minItems": 1}
        case Kind.MAPPING:
            choices = [{"enum": list(setting.choices)}] if setting.choices else []
            return {"anyOf": [*choices, _inner_schema(setting)]}
        case Kind.TREE:
            # Each alias of a tree has a tree below it; the schema has the first two levels.
            names = {"type": "array", "items": {"type": ["string", "number", "boolean"]}}
            below = {"type": "object", "additionalProperties": {"type": ["array", "object", "null"]}}
            return {"anyOf": [names, below]}
        case _:
            # YAML reads `no` and `007` as other types; the reader uses the text as written.
            return {"type": ["string", "number", "boolean"]}


def _step_schema(kind: StepKind) -> dict[str, Any]:
    schema = spec_schema(kind.spec)
    if kind.short:
        schema = {"anyOf": [{"type": ["string", "number", "boolean"]}, schema]}
    name = kind.spec.name
    return {"type": "object", "required": [name], "properties": {name: schema}, "additionalProperties": False}


def _inner_schema(setting: Setting) -> dict[str, Any]:
    return spec_schema(setting.inner) if setting.inner is not None else {"type": "object"}


def _namespace_schema() -> dict[str, Any]:
    bus = {**spec_schema(NAMESPACE_SPEC), "oneOf": [{"required": ["connection"]}, {"required": ["host"]}]}
    bus["properties"] = {**bus["properties"], "kind": {**bus["properties"]["kind"], "enum": [SERVICE_BUS.name]}}
    others = []
    for kind in KINDS.values():
        if kind is not SERVICE_BUS:
            schema = spec_schema(kind.spec(KIND_SETTING))
            schema["properties"]["kind"] = {"const": kind.name, "description": KIND_SETTING.description}
            others.append({**schema, "required": [*schema["required"], KIND_SETTING.name]})
    return {"oneOf": [bus, *others]}


def _spark_schema() -> dict[str, Any]:
    schema = spec_schema(SPARK_SPEC)
    settings: dict[str, Any] = {
        "type": "object",
        "description": _described(SPARK_SPEC, "settings"),
        "properties": dict.fromkeys(REFUSED, False),
        "propertyNames": {"pattern": r"^spark\."},
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    }
    schema["properties"] |= {"settings": settings, "control": spec_schema(CONTROL_SPEC)}
    return schema


def _task_schema(spec: Spec) -> dict[str, Any]:
    schema = spec_schema(spec)
    schema["properties"] = {"pattern": {"const": spec.name, "description": spec.description}, **schema["properties"]}
    schema["required"] = ["pattern", *schema["required"]]
    return schema


def _described(spec: Spec, name: str) -> str:
    setting = spec.get(name)
    return setting.description if setting else ""
