"""What each step of one message does."""

from __future__ import annotations

import base64
import io
import json
import os
import time
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pyarrow import parquet

from isthmus.amqp import section
from isthmus.errors import InvalidArgumentError
from isthmus.replication.step import cipher, watched_file
from isthmus.replication.step.base import guarded
from isthmus.replication.step.chain.opener import open_message_step
from isthmus.replication.step.encryption import jwe
from isthmus.replication.step.encryption.key import KeyRing, parse_key
from isthmus.replication.step.message.message import StepMessage
from isthmus.replication.step.normalise import read_xml, write_xml
from isthmus.replication.step.reference.file import load_reference
from isthmus.replication.step.watched_file import CHECK_SECONDS, WatchedFile
from isthmus.topology.step import STEPS, StepDeclaration


def passed(kind: str, message: bytes, **settings: Any) -> StepMessage | tuple[str, str, str]:
    """The message after a step, or what became of it."""
    defaults = {each.name: each.default for each in STEPS[kind].spec.settings if each.default is not None}
    step = open_message_step(StepDeclaration(kind, {**defaults, **settings}))
    read = StepMessage(message)
    found = guarded(step, read)
    return StepMessage(read.encoded()) if found is None else (found.kind, found.reason, found.description)


def message(body: Any, **properties: Any) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return section.encode_message(
        data, properties={"message_id": "1", "content_type": "application/json"}, application_properties=properties
    )


# ---- validate


def test_validate_shows_where_a_body_does_not_fit(tmp_path: Path) -> None:
    schema = tmp_path / "s.json"
    schema.write_text('{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}')
    assert isinstance(passed("validate", message({"a": 1}), schema=str(schema)), StepMessage)
    reported = passed("validate", message({"a": "x"}), schema=str(schema))
    assert reported == ("dead-letter", "ValidationFailed", 'step validate: at /a: "x" is not of type "integer"')
    assert passed("validate", message(b"{"), schema=str(schema), on_failure="drop")[0] == "complete"  # type: ignore[index]


def test_validate_knows_avro(tmp_path: Path) -> None:
    schema = tmp_path / "s.avsc"
    schema.write_text('{"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}')
    assert isinstance(passed("validate", message({"a": 1}), schema=str(schema)), StepMessage)
    assert passed("validate", message({"a": "x"}), schema=str(schema))[1] == "ValidationFailed"  # type: ignore[index]
    assert isinstance(passed("validate", message(b"\x02"), schema=str(schema), encoding="avro"), StepMessage)
    for wrong in (b"", b"\x02\x02"):
        assert passed("validate", message(wrong), schema=str(schema), encoding="avro")[1] == "ValidationFailed"  # type: ignore[index]


@pytest.mark.parametrize("text", ["{", '{"type": "objekt"}', '{"$ref": "https://example.com/a.json"}'])
def test_a_schema_that_is_none_is_refused_when_it_is_opened(tmp_path: Path, text: str) -> None:
    schema = tmp_path / "s.json"
    schema.write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"step validate: .*s\.json"):
        open_message_step(StepDeclaration("validate", {"schema": str(schema), "encoding": "json"}))


# ---- enrich


def test_enrich_adds_columns_and_reads_a_changed_file_again(tmp_path: Path) -> None:
    data = tmp_path / "airports.csv"
    data.write_text("faa,name,lat\nIAH,Houston,29.98\n7,Seven,\n")
    settings = {"from": str(data), "on": "dest = faa", "columns": ["name", "lat"], "prefix": "to_"}
    assert passed("enrich", message({"dest": "IAH"}), **settings).json == {
        "dest": "IAH",
        "to_name": "Houston",
        "to_lat": 29.98,
    }  # type: ignore[union-attr]
    assert passed("enrich", message({"dest": 7}), **settings).json["to_lat"] is None  # type: ignore[union-attr]
    assert passed("enrich", message({"dest": "X"}), **settings).json == {"dest": "X"}  # type: ignore[union-attr]
    reported = passed("enrich", message({"dest": "X"}), **settings, missing="fail")
    assert reported == ("dead-letter", "NoReferenceData", "step enrich: there is no reference data for dest: it is 'X'")
    with pytest.raises(InvalidArgumentError, match=r"airports\.csv"):
        open_message_step(StepDeclaration("enrich", {**settings, "columns": ["nope"], "missing": "keep"}))


def test_i2_of_enrich_a_key_is_the_text_in_the_file(tmp_path: Path) -> None:
    """Arrow takes NA for null, and 007 for 7."""
    data = tmp_path / "countries.csv"
    data.write_text("code,name,area,part\nNA,Namibia,825615,AF\n007,Bond,,NA\n8,N/A,1,NA\ntrue,yes,NA,EU\n,none,1,AF\n")
    found = load_reference(str(data), "code", ["name", "area", "part"])
    assert found["NA"] == ("Namibia", 825615, "AF")
    assert found["007"] == found["7"] == ("Bond", None, "NA")
    assert found["8"] == ("N/A", 1, "NA")
    assert found["true"] == ("yes", None, "EU")
    assert "" not in found
    data.write_text("code,part\nUS,NA\nCA,NA\n")
    assert load_reference(str(data), "code", ["part", "code"]) == {"US": ("NA", "US"), "CA": ("NA", "CA")}


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        (("01234", "99999"), ["01234", "99999"]),
        (("+491234", "5"), ["+491234", "5"]),
        (("12345678901234567890", "1"), ["12345678901234567890", "1"]),
        (("0.12345678901234567890", "1"), ["0.12345678901234567890", "1"]),
        (("1e400", "1"), ["1e400", "1"]),
        (("1.10", "-0.5"), [1.1, -0.5]),
        (("1e3", ".5"), [1000.0, 0.5]),
        (("0", "-7"), [0, -7]),
        (("NA", "7"), [None, 7]),
        (("NaN", "7.5"), [None, 7.5]),
        (("inf", "7.5"), [None, 7.5]),
        (("9007199254740993", "7"), [9007199254740993, 7]),
    ],
)
def test_i3_of_enrich_a_number_of_a_csv_file_loses_no_digit(
    tmp_path: Path, cells: tuple[str, str], wanted: list[Any]
) -> None:
    path = tmp_path / "data.csv"
    path.write_text("id,value\n" + "".join(f"{at},{cell}\n" for at, cell in enumerate(cells)))
    settings = {"from": str(path), "on": "id = id", "columns": ["value"], "missing": "fail"}
    found = [passed("enrich", message({"id": at}), **settings).json["value"] for at in range(2)]  # type: ignore[union-attr]
    assert (found, list(map(type, found))) == (wanted, list(map(type, wanted)))


def test_enrich_adds_whatever_a_parquet_file_holds(tmp_path: Path) -> None:
    value = {
        "at": datetime(2026, 1, 1),  # noqa: DTZ001 - as Parquet has it
        "sums": [Decimal("1.50"), Decimal("0.1234567890123456789")],
        "raw": b"x",
        "far": float("inf"),
        "took": timedelta(seconds=1.5),
    }
    parquet.write_table(pa.table({"id": [1], "value": [value]}), str(tmp_path / "data.parquet"))
    settings = {"from": str(tmp_path / "data.parquet"), "on": "id = id", "columns": ["value"], "missing": "fail"}
    found = passed("enrich", message({"id": 1}), **settings)
    assert isinstance(found, StepMessage), found
    assert found.json["value"] == {
        "at": "2026-01-01T00:00:00",
        "sums": [1.5, "0.1234567890123456789"],
        "raw": "78",
        "far": None,
        "took": 1.5,
    }


def test_enrich_finds_nothing_for_null(tmp_path: Path) -> None:
    data = tmp_path / "names.csv"
    data.write_text("id,name\nNone,nobody\ntrue,yes\n7,seven\n")
    settings = {"from": str(data), "on": "id = id", "columns": ["name"]}
    assert passed("enrich", message({"id": None}), **settings).json == {"id": None}  # type: ignore[union-attr]
    for value, name in ((True, "yes"), ("true", "yes"), (7, "seven"), ("7", "seven"), (7.0, "seven")):
        assert passed("enrich", message({"id": value}), **settings).json["name"] == name  # type: ignore[union-attr]


def test_i1_of_watched_file_a_change_is_seen_and_a_broken_one_leaves_what_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", watched_file.__name__)  # whatever level another test has left
    file, now = tmp_path / "f", [0.0]
    file.write_text("1")
    watched = WatchedFile(str(file), lambda path: int(Path(path).read_text()), lambda: now[0], lambda: time.time() + 60)
    file.write_text("22")
    assert watched.get() == 1
    now[0] += CHECK_SECONDS
    assert watched.get() == 22
    file.write_text("broken")
    for _ in range(3):
        now[0] += CHECK_SECONDS
        assert watched.get() == 22
    reported = [record.levelname for record in caplog.records if record.name == watched_file.__name__]
    assert reported == ["INFO", "WARNING"]  # of the change, and of what is broken once
    file.write_text("4444")
    now[0] += CHECK_SECONDS
    assert watched.get() == 4444


def test_i2_of_watched_file_one_that_is_being_written_is_read_when_it_is_complete(tmp_path: Path) -> None:
    """A program writes a long file where the old one was: the first half of it is a shorter file, with a name that is cut."""
    data, now = tmp_path / "airports.csv", [0.0]
    data.write_text("faa,name\nIAH,Houston\nORD,Chicago\n")

    def load(path: str) -> dict[str, tuple[Any, ...]]:
        found = load_reference(path, "faa", ["name"])
        if while_it_is_read:
            data.write_text(while_it_is_read.pop())
        return found

    while_it_is_read = list[str]()
    watched = WatchedFile(str(data), load, lambda: now[0], lambda: 0.0)
    data.write_text("faa,name\nIAH,Hous")
    now[0] += CHECK_SECONDS
    assert watched.get()["ORD"] == ("Chicago",)
    data.write_text("faa,name\nIAH,Houston Bush\nORD,Chi")
    now[0] += CHECK_SECONDS
    assert watched.get()["ORD"] == ("Chicago",)
    while_it_is_read.append("faa,name\nIAH,Houston Bush\nORD,Chicago O'Hare\n")
    now[0] += CHECK_SECONDS
    assert watched.get()["ORD"] == ("Chicago",)
    for _ in range(2):
        now[0] += CHECK_SECONDS
        found = watched.get()
    assert found == {"IAH": ("Houston Bush",), "ORD": ("Chicago O'Hare",)}


# ---- encrypt, decrypt


@pytest.mark.parametrize("form", ["jwe", "aes-gcm"])
def test_what_is_encrypted_is_decrypted_with_the_key_that_the_message_names(tmp_path: Path, form: str) -> None:
    keys = {}
    for name in ("old", "new"):
        (tmp_path / name).write_text(base64.b64encode(os.urandom(32)).decode())
        keys[name] = f"file:{tmp_path / name}"
    clear = message({"secret": "value"}, carrier="UA")
    for name, reference in keys.items():
        sealed = passed("encrypt", clear, key=reference, key_id=name, format=form)
        assert isinstance(sealed, StepMessage)
        assert b"value" not in sealed.raw
        assert sealed.properties["content_type"] == (
            "application/jose" if form == "jwe" else "application/octet-stream"
        )
        opened = passed("decrypt", sealed.raw, keys=keys, format=form)
        assert isinstance(opened, StepMessage)
        assert (opened.json, opened.properties["content_type"]) == ({"secret": "value"}, "application/json")
        assert opened.application_properties == {"carrier": "UA"}
    (tmp_path / "new").write_text(base64.b64encode(os.urandom(32)).decode())
    assert passed("decrypt", sealed.raw, keys=keys, format=form)[1] == "DecryptionFailed"  # type: ignore[index]
    assert passed("decrypt", sealed.raw, keys={"old": keys["old"]}, format=form)[2].endswith("no key has the id 'new'")  # type: ignore[index]
    assert passed("decrypt", clear, key=keys["old"], format=form)[1] == "DecryptionFailed"  # type: ignore[index]


@pytest.mark.parametrize("form", ["jwe", "aes-gcm"])
def test_i3_a_rotated_key_is_used_for_the_first_message_that_is_sealed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    now = [100.0]
    monkeypatch.setattr(cipher, "KeyRing", partial(KeyRing, clock=lambda: now[0]))
    path = tmp_path / "key"
    path.write_text(bytes(32).hex())
    settings = {"key": f"file:{path}", "format": form}
    decrypt = open_message_step(StepDeclaration("decrypt", settings))
    path.write_text((b"x" * 32).hex())
    sealed = passed("encrypt", message({"a": 1}), **settings)
    assert isinstance(sealed, StepMessage)
    assert guarded(decrypt, StepMessage(sealed.raw)) is not None, "it was read just now"
    now[0] += 2.0
    read = StepMessage(sealed.raw)
    assert guarded(decrypt, read) is None
    assert read.json == {"a": 1}


def test_i3_a_rotated_key_of_another_length_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(cipher, "KeyRing", partial(KeyRing, clock=lambda: now[0]))
    path = tmp_path / "key"
    path.write_text(bytes(32).hex())
    settings = {"key": f"file:{path}", "format": "jwe", "algorithm": "A256GCM", "on_failure": "dead-letter"}
    encrypt = open_message_step(StepDeclaration("encrypt", settings))
    path.write_text(bytes(16).hex())
    now[0] += 100.0
    read = StepMessage(message({"a": 1}))
    assert guarded(encrypt, read) is None
    assert jwe.unseal(read.body, AESGCM(bytes(32))) == b'{"a": 1}'
    assert "A256GCM needs a key of 256 bits, this one has 128" in caplog.text


def test_i2_of_encrypt_what_a_message_has_of_an_earlier_encryption_is_not_taken_for_its_own(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(bytes(32).hex())
    settings = {"key": f"file:{path}", "format": "aes-gcm"}
    stale = {"isthmus-content-type": "stale", "isthmus-key-id": "stale"}
    clear = section.encode_message(b"x", application_properties=stale)
    sealed = passed("encrypt", clear, **settings)
    assert isinstance(sealed, StepMessage)
    opened = passed("decrypt", sealed.raw, **settings)
    assert isinstance(opened, StepMessage)
    assert (opened.body, opened.get_property("content_type"), opened.application_properties) == (b"x", None, {})
    again = passed("encrypt", sealed.raw, **settings)
    assert again[1:] == (
        "StepFailed",
        "step encrypt: ValueError: the body is encrypted already; use the format jwe to encrypt it twice",
    )  # type: ignore[index]


@pytest.mark.parametrize("times", [1, 2])
def test_jwe_is_opened_as_often_as_it_was_sealed(tmp_path: Path, times: int) -> None:
    path = tmp_path / "key"
    path.write_text(bytes(32).hex())
    settings = {"key": f"file:{path}", "format": "jwe"}
    found: Any = StepMessage(message({"a": 1}))
    for kind in ("encrypt", "decrypt"):
        for _ in range(times):
            found = passed(kind, found.raw, **settings)
    assert (found.json, found.get_property("content_type")) == ({"a": 1}, "application/json")


def test_a_token_has_the_form_of_rfc_7516() -> None:
    sealing = AESGCM(bytes(32))
    token = jwe.seal(b"plain", sealing, {"enc": "A256GCM", "kid": "k"}, random=bytes)
    parts = token.split(b".")
    assert (len(parts), parts[1]) == (5, b"")
    assert json.loads(base64.urlsafe_b64decode(parts[0] + b"==")) == {"alg": "dir", "enc": "A256GCM", "kid": "k"}
    text, tag = (base64.urlsafe_b64decode(each + b"==") for each in parts[3:])
    assert AESGCM(bytes(32)).decrypt(bytes(12), text + tag, parts[0]) == b"plain"
    assert jwe.unseal(token, sealing) == b"plain"


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "RSA-OAEP", "enc": "A256GCM"},
        {"alg": "dir", "enc": "A128CBC-HS256"},
        {"alg": "dir", "enc": "A256GCM", "zip": "DEF"},
        {"alg": "dir", "enc": "A256GCM", "crit": ["x"]},
    ],
)
def test_i2_of_jwe_a_token_of_another_kind_is_refused(header: dict[str, Any]) -> None:
    first = base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=")
    with pytest.raises(jwe.JweError):
        jwe.unseal(first + b"..AAAA.AAAA.AAAA", AESGCM(bytes(32)))


def test_keys_are_read_in_every_form_and_never_repeated() -> None:
    octets = bytes(range(32))
    k = base64.urlsafe_b64encode(octets).decode().rstrip("=")
    for text in (octets.hex(), base64.b64encode(octets).decode(), k, json.dumps({"kty": "oct", "k": k, "kid": "a"})):
        assert parse_key(text, "env:K").octets == octets
    for wrong in ("abcdef", "not a key", '{"kty": "RSA", "k": "abcdef"}', '{"k": '):
        with pytest.raises(InvalidArgumentError, match=r"^env:K: ") as refused:
            parse_key(wrong, "env:K")
        assert "abcdef" not in str(refused.value)
    assert "x00" not in repr(parse_key(octets.hex(), "env:K"))


# ---- map, reduce, normalise


def test_map_and_reduce() -> None:
    given = message({"a": {"b": 1}, "c": 2}, carrier="UA")
    fields = {"x.y": "a.b", "who": "property:Carrier", "id": "system:MessageId", "by": "'me'", "no": "a.z"}
    wanted = {"x": {"y": 1}, "who": "UA", "id": "1", "by": "me"}
    assert passed("map", given, fields=fields).json == wanted  # type: ignore[union-attr]
    assert passed("map", given, fields=fields, keep=True).json == {"a": {"b": 1}, "c": 2, **wanted}  # type: ignore[union-attr]
    assert passed("reduce", given, keep=["a.b"]).json == {"a": {"b": 1}}  # type: ignore[union-attr]
    reduced = passed("reduce", given, remove=["a", "property:carrier"])
    assert isinstance(reduced, StepMessage)
    assert (reduced.json, reduced.application_properties) == ({"c": 2}, {})
    assert passed("map", message([1]), fields={"a": "a"})[1] == "StepFailed"  # type: ignore[index]


def test_reduce_takes_a_field_out_of_each_element_of_a_list() -> None:
    given = message({"a": [{"name": "x", "n": 1}, [{"name": "y"}], 5], "b": {"name": "z"}, "name": [1]})
    reduced = passed("reduce", given, remove=["a.name", "b.name.x"])
    assert reduced.json == {"a": [{"n": 1}, [{}], 5], "b": {"name": "z"}, "name": [1]}  # type: ignore[union-attr]


def test_normalise_writes_every_encoding_in_every_other(tmp_path: Path) -> None:
    schema = tmp_path / "s.avsc"
    schema.write_text(
        '{"type": "record", "name": "r", "fields": [{"name": "carrier", "type": "string"}, {"name": "to", "type": "string"}]}'
    )
    value = {"carrier": "UA", "to": "IÄH"}
    settings: dict[str, Any] = {"schema": str(schema), "columns": ["carrier", "to"]}
    encodings = ("json", "avro", "xml", "csv")
    for source in encodings:
        written = passed("normalise", message(value), **{"from": "json", "to": source}, **settings)
        assert isinstance(written, StepMessage)
        for target in encodings:
            there = passed("normalise", written.raw, **{"from": source, "to": target}, **settings)
            assert isinstance(there, StepMessage)
            back = passed("normalise", there.raw, **{"from": target, "to": "json"}, **settings)
            assert isinstance(back, StepMessage)
            assert back.json == value


def test_xml_keeps_attributes_repetition_and_text() -> None:
    reported = {"@id": "1", "leg": [{"to": "IAH"}, {"to": "MIA"}], "#text": "hello"}
    assert read_xml(write_xml(reported, "flight")) == reported


def test_what_a_step_takes_out_stays_where_it_came_from(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": [1], "place": [{"lat": 1.0, "lon": 2.0}]}), str(tmp_path / "places.parquet"))
    declared = {
        "map": {"fields": {"one": "leg", "two": "leg", "id": "id"}, "keep": False},
        "enrich": {"from": str(tmp_path / "places.parquet"), "on": "id = id", "columns": ["place"], "missing": "keep"},
        "reduce": {"remove": ["one.to", "place.lat"]},
    }
    steps = [open_message_step(StepDeclaration(kind, settings)) for kind, settings in declared.items()]
    for _ in range(2):
        read = StepMessage(message({"leg": {"to": "IAH", "from": "EWR"}, "id": 1}))
        for step in steps[:2]:
            assert guarded(step, read) is None
        assert read.json["place"] == {"lat": 1.0, "lon": 2.0}
        assert guarded(steps[2], read) is None
        assert read.json["one"] == {"from": "EWR"}
        assert read.json["two"] == {"to": "IAH", "from": "EWR"}


def test_i2_of_normalise_a_character_that_xml_does_not_hold_is_refused() -> None:
    reported = passed("normalise", message({"a": "x\0y"}), **{"from": "json", "to": "xml", "root": "r"})
    assert reported[2].endswith("it has the character U+0000, which XML cannot contain")  # type: ignore[index]


def test_xml_keeps_text_between_elements() -> None:
    assert read_xml(b"<p>one <b>two</b> three <b/>four</p>") == {"b": ["two", None], "#text": "one three four"}


def test_i2_of_normalise_bytes_behind_a_datum_are_not_left_out(tmp_path: Path) -> None:
    schema = tmp_path / "s.avsc"
    schema.write_text('{"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}')
    settings = {"from": "avro", "to": "json", "schema": str(schema)}
    assert passed("normalise", message(b"\x02"), **settings).json == {"a": 1}  # type: ignore[union-attr]
    reported = passed("normalise", message(b"\x02\x04"), **settings)
    assert reported == ("dead-letter", "StepFailed", "step normalise: ValueError: bytes follow the datum")


def test_i2_of_normalise_what_json_has_not_is_refused_and_cells_are_as_in_json(tmp_path: Path) -> None:
    schema = tmp_path / "s.avsc"
    schema.write_text(
        '{"type": "record", "name": "r", "fields": [{"name": "d", "type": "double"}, {"name": "b", "type": "bytes"},'
        '{"name": "t", "type": {"type": "int", "logicalType": "date"}}]}'
    )
    parsed = fastavro.parse_schema(json.loads(schema.read_text()))

    def datum(number: float) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, {"d": number, "b": b"\0x", "t": 1})
        return out.getvalue()

    settings = {"from": "avro", "schema": str(schema)}
    csv = passed("normalise", message(datum(1.5)), **settings, to="csv", columns=["d", "b", "t"])
    assert isinstance(csv, StepMessage)
    assert csv.body == b"1.5,0078,1970-01-02\r\n"
    reported = passed("normalise", message(datum(float("nan"))), **settings, to="json")
    assert reported[1] == "StepFailed"  # type: ignore[index]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ('"int"', 1.5),
        ('"int"', 1 << 40),
        ('"int"', True),
        ('"long"', 1e300),
        ('"boolean"', "false"),
        ('"boolean"', 0),
        ('"float"', 1e300),
        ('"double"', (1 << 60) + 1),
        ('{"type": "array", "items": "int"}', [1, 1.5]),
        ('{"type": "map", "values": "boolean"}', {"x": "no"}),
        ('{"type": "record", "name": "q", "fields": [{"name": "x", "type": "long"}]}', {"x": 0.5}),
        ('{"type": "record", "name": "q", "fields": [{"name": "x", "type": "long"}]}', {"x": 1, "y": 2}),
        ('["null", "int"]', 1.5),
    ],
)
def test_i2_of_normalise_what_avro_would_hold_as_another_value_is_refused(
    kind: str, value: Any, tmp_path: Path
) -> None:
    schema = tmp_path / "s.avsc"
    schema.write_text(f'{{"type": "record", "name": "r", "fields": [{{"name": "a", "type": {kind}}}]}}')
    reported = passed("normalise", message({"a": value}), **{"from": "json", "to": "avro", "schema": str(schema)})
    assert reported[1] == "StepFailed"  # type: ignore[index]


def test_i2_of_normalise_avro_holds_whole_numbers_defaults_and_named_types(tmp_path: Path) -> None:
    schema = tmp_path / "s.avsc"
    schema.write_text(
        '{"type": "record", "name": "r", "namespace": "n", "fields": [{"name": "a", "type": "long"}, {"name": "f", "type": "float"},'
        '{"name": "d", "type": "int", "default": 3}, {"name": "t", "type": {"type": "int", "logicalType": "date"}},'
        '{"name": "next", "type": ["null", "r"], "default": null}]}'
    )
    first = {"a": 5.0, "f": 1, "t": "2026-01-01"}
    settings = {"schema": str(schema)}
    written = passed(
        "normalise", message(first | {"next": {"a": 1, "f": 2.5, "t": 0}}), **{"from": "json", "to": "avro"}, **settings
    )
    assert isinstance(written, StepMessage), written
    back = passed("normalise", written.raw, **{"from": "avro", "to": "json"}, **settings)
    inner = {"a": 1, "f": 2.5, "d": 3, "t": "1970-01-01", "next": None}
    assert back.json == {"a": 5, "f": 1.0, "d": 3, "t": "2026-01-01", "next": inner}  # type: ignore[union-attr]


def test_i2_of_normalise_a_field_that_the_schema_has_not_is_refused(tmp_path: Path) -> None:
    schema = tmp_path / "s.avsc"
    schema.write_text('{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int", "default": 3}]}')
    settings = {"from": "json", "to": "avro", "schema": str(schema)}
    assert passed("normalise", message({"A": 5}), **settings)[1] == "StepFailed"  # type: ignore[index]


def test_i2_of_normalise_csv_leaves_no_field_out() -> None:
    to_csv = {"from": "json", "to": "csv"}
    reported = passed("normalise", message({"a": 1, "b": 2}), **to_csv, columns=["a"])
    assert reported[2].endswith("there is no column for the field 'b'")  # type: ignore[index]
    reported = passed("normalise", message(b"a,b,a\r\n1,2,3\r\n"), **{"from": "csv", "to": "json"})
    assert reported[2].endswith("two columns are named 'a'")  # type: ignore[index]


@pytest.mark.parametrize("to", ["csv", "xml"])
def test_i2_of_normalise_a_number_that_json_has_not_is_refused(to: str) -> None:
    reported = passed("normalise", message(b'{"a": Infinity}'), **{"from": "json", "to": to})
    assert reported[2].endswith("it has the number inf, which JSON does not have")  # type: ignore[index]


@pytest.mark.parametrize("number", ["1e400", "12345678901234567890.5", "0.1000000000000000055"])
def test_a_number_keeps_its_digits_in_every_step(tmp_path: Path, number: str) -> None:
    body = f'{{"a": {number}, "b": {{"c": [{number}]}}, "d": 1}}'.encode()
    mapped = passed("map", message(body), fields={"x.y": "a", "z": "b"}, keep=True)
    assert (
        mapped.body.decode()
        == f'{{"a":{number},"b":{{"c":[{number}]}},"d":1,"x":{{"y":{number}}},"z":{{"c":[{number}]}}}}'
    )  # type: ignore[union-attr]
    reduced = passed("reduce", message(body), remove=["d"])
    assert reduced.body.decode() == f'{{"a":{number},"b":{{"c":[{number}]}}}}'  # type: ignore[union-attr]
    data = tmp_path / "r.csv"
    data.write_text(f"k,v\n{number},found\n12345678901234567168,another\n")
    enriched = passed("enrich", message(body), **{"from": str(data)}, on="a = k", columns=["v"])
    assert enriched.body.decode() == f'{{"a":{number},"b":{{"c":[{number}]}},"d":1,"v":"found"}}'  # type: ignore[union-attr]
    json_to = {"from": "json"}
    assert passed("normalise", message(body), **json_to, to="json").body == body.replace(b" ", b"")  # type: ignore[union-attr]
    flat = message(f'{{"a": {number}}}'.encode())
    assert passed("normalise", flat, **json_to, to="csv").body == f"a\r\n{number}\r\n".encode()  # type: ignore[union-attr]
    assert f"<a>{number}</a>".encode() in passed("normalise", flat, **json_to, to="xml", root="r").body  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ['"double"', '["null", "double"]'])
def test_i2_of_normalise_a_number_beyond_those_of_avro_is_refused(tmp_path: Path, kind: str) -> None:
    schema = tmp_path / "s.avsc"
    schema.write_text(f'{{"type": "record", "name": "R", "fields": [{{"name": "a", "type": {kind}}}]}}')
    settings = {"from": "json", "to": "avro", "schema": str(schema)}
    reported = passed("normalise", message(b'{"a": 1e400}'), **settings)
    assert reported[2].endswith("it has a number beyond the range of Avro's types")  # type: ignore[index]
    assert isinstance(passed("normalise", message(b'{"a": 0.1000000000000000055}'), **settings), StepMessage)


@pytest.mark.parametrize("name", ["a b", "", "{u}a", "1", "a:b:c", "a='1' b"])
def test_a_name_that_no_attribute_of_xml_has_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of an XML attribute"):
        write_xml({f"@{name}": "x"}, "r")


@pytest.mark.parametrize("name", ["xmlns", "xmlns:n", "n:a", "é", "_a.b-c"])
def test_a_name_of_an_attribute_is_written(name: str) -> None:
    reported = {"@xmlns:n": "urn:n", f"@{name}": "x"}
    assert read_xml(write_xml(reported, "r")) == reported


def test_i1_of_normalise_a_document_with_a_dtd_is_refused() -> None:
    bomb = b'<!DOCTYPE a [<!ENTITY b "cccc">]><a>&b;</a>'
    reported = passed("normalise", message(bomb), **{"from": "xml", "to": "json"})
    assert reported == ("dead-letter", "StepFailed", "step normalise: ValueError: the XML document has a DTD")
