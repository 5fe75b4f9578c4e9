from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.topology import lint
from isthmus.topology.file.reader import NAMESPACE_SPEC
from isthmus.topology.file.schema import federation_schema, spec_schema
from isthmus.topology.file.starter import starter
from isthmus.topology.pattern import PATTERNS

FIXTURES = Path(__file__).parents[3] / "fixtures" / "topology"
SOUND_AT_LEAST = 9
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
    "number": (int, float),
    "null": type(None),
}


def valid(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value is valid, by the part of JSON Schema that the schema uses."""
    kinds = schema.get("type", list(TYPES))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not any(isinstance(value, TYPES[kind]) for kind in kinds):
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        return False
    if "anyOf" in schema and not any(valid(each, value) for each in schema["anyOf"]):
        return False
    if "oneOf" in schema and sum(valid(each, value) for each in schema["oneOf"]) != 1:
        return False
    if isinstance(value, list):
        return len(value) >= schema.get("minItems", 0) and all(valid(schema.get("items", {}), each) for each in value)
    if isinstance(value, dict):
        if any(name not in value for name in schema.get("required", [])):
            return False
        for name, each in value.items():
            rest = schema.get("additionalProperties", True)
            inner = schema.get("properties", {}).get(name, {} if re.match("x-", str(name)) else rest)
            if inner is False or (isinstance(inner, dict) and not valid(inner, each)):
                return False
    return True


def test_i1_a_file_without_faults_is_valid() -> None:
    sound = [file for file in FIXTURES.glob("*/*.yaml") if not lint(file.read_text())]
    assert len(sound) >= SOUND_AT_LEAST
    assert [file.stem for file in sound if not valid(federation_schema(), yaml.safe_load(file.read_text()))] == []


@pytest.mark.parametrize("pattern", PATTERNS)
def test_i1_starters_are_valid(pattern: str) -> None:
    assert valid(federation_schema(), yaml.safe_load(starter(pattern)))


@pytest.mark.parametrize("name", ["everything", "bare", "null", "secrets"])
def test_a_file_with_faults_of_form_is_not_valid(name: str) -> None:
    document = yaml.safe_load((FIXTURES / "faults" / f"{name}.yaml").read_text())
    assert not valid(federation_schema(), document) or name == "bare"


@pytest.mark.parametrize(
    "spec", [NAMESPACE_SPEC, *(pattern.spec for pattern in PATTERNS.values())], ids=lambda s: s.name
)
def test_every_setting_is_in_schema_and_starter(spec: Any) -> None:
    written = spec_schema(spec)["properties"]
    for setting in spec.settings:
        assert (setting.name in written) == setting.available
        if setting.available:
            assert setting.name in starter(spec.name if spec.name in PATTERNS else "all-active")
            assert setting.description.endswith(".")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_starters_are_without_fault(pattern: str) -> None:
    assert lint(starter(pattern)) == []


def test_every_line_of_a_starter_can_be_uncommented() -> None:
    """A setting that is shown in a comment is valid as it is written, apart from those that exclude others, or need one."""
    for line in starter("all-active").splitlines():
        match = re.fullmatch(r"    # ([a-z_]+): (\S.*)", line)
        spec = PATTERNS["all-active"].spec
        setting = spec.get(match[1]) if match else None
        if match and setting and setting.name not in {"queue", "subscription", "canary"}:
            text = starter("all-active").replace(line, line.replace("# ", "", 1))
            assert lint(text) == []
