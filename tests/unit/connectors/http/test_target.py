"""Ids and secrets of an HTTP target."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.amqp import section
from isthmus.bridge.refusal import RefusalKind
from isthmus.connectors.copier import Copier
from isthmus.connectors.http.client import Answer
from isthmus.connectors.http.mapping import to_messages, to_request
from isthmus.connectors.http.option import read_target
from isthmus.connectors.http.target import HttpRequester, judge
from isthmus.connectors.request.requester import RequestError
from isthmus.errors import ConfigError

SECRET = "hunter2-of-the-hook"


def said_id(message: bytes) -> object:
    return section.decode_properties(message, section.locate(message).properties).get("message_id")


def test_two_messages_have_two_ids_however_long_their_own_are() -> None:
    """A receiver that remembers ids would drop the second."""
    names = ["番号" * 30 + str(number) for number in range(2)]
    ids = {
        to_request(section.encode_message(b"x", properties={"message_id": name}), "body", "").event_id for name in names
    }
    assert len(ids) == 2
    assert all(len(each) <= 256 and each.isascii() for each in ids)
    for header in ("webhook-id", "ce-id"):
        found = [to_messages({header: "a" * 200 + str(number)}, b"x")[0] for number in range(2)]
        assert len({said_id(each) for each in found}) == 2
        assert all(len(str(said_id(each))) == 128 for each in found)


def test_copies_of_two_messages_with_one_id_have_two() -> None:
    """Two publishers may number their messages alike; a copy that is made again has the same id as before."""
    options = read_target({"url": "http://127.0.0.1:1", "entity": "hook", "origin": "ewr/orders"}).copying
    copier = Copier(options, "hook", "namespace", "target")

    def copied(sequence: int, now_ms: int) -> bytes:
        original = section.encode_header(section.Header(ttl_ms=60_000)) + section.encode_message(
            b"x",
            properties={"message_id": "1"},
            annotations={"x-opt-sequence-number": sequence, "x-opt-enqueued-time": section.Timestamp(1000)},
        )
        (copy,) = copier.copies(original, [0, len(original)], now_ms).payloads
        return to_request(copy, "structured", "ewr/orders").event_id.encode()

    assert copied(1, 2000) == copied(1, 9000)
    assert copied(1, 2000) != copied(2, 2000)


@pytest.mark.parametrize(
    "url",
    [
        f"https://user:{SECRET}@api.example.com/hooks",
        f"https://api.example.com/hooks?sig={SECRET}",
        f"https://api.example.com/hooks#{SECRET}",
        f"api.example.com/{SECRET}",
    ],
)
def test_an_address_with_a_secret_is_refused_and_not_repeated(url: str) -> None:
    """It would be in plans and logs; and of a query, which some systems have their keys in, nothing would be sent."""
    with pytest.raises(ConfigError, match="write a secret into secret") as raised:
        read_target({"url": url, "entity": "hook"})
    assert SECRET not in str(raised.value)


def test_i2_no_text_holds_the_secret(tmp_path: Path) -> None:
    answer = Answer(400, f"Bad {SECRET}", {}, f'{{"authorization": "{SECRET}"}}'.encode())
    refusal = judge("POST x", answer, SECRET)
    assert refusal is not None
    assert SECRET not in str(refusal)
    assert "***" in str(refusal)
    (tmp_path / "secret").write_text(f"{SECRET}\nsecond line")
    requester = HttpRequester(
        read_target(
            {"url": "http://127.0.0.1:9", "entity": "hook", "auth": "bearer", "secret": f"file:{tmp_path / 'secret'}"}
        )
    )
    with pytest.raises(RequestError):
        requester.open()
    requester._client.request = _refusing  # type: ignore[union-attr, method-assign]
    with pytest.raises(RequestError) as raised:
        requester.send([section.encode_message(b"x")])
    assert raised.value.refusal.kind is RefusalKind.FATAL
    assert SECRET not in str(raised.value)


def _refusing(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> Answer:
    """As `http.client` does, whose text has the value."""
    raise ValueError(f"Invalid header value {headers['authorization']!r}")
