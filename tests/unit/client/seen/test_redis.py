"""The list in Redis, without a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isthmus.client.seen import RedisSeen, SeenStoreError, Verdict

pytest.importorskip("redis")


@pytest.mark.parametrize("answer", [b"new", "new"], ids=["bytes", "text"])
def test_a_client_that_decodes_its_answers_can_be_used(answer: object) -> None:
    """One of the application's own, with `decode_responses`."""

    class Client:
        def register_script(self, text: str) -> Callable[..., Any]:
            return lambda keys, args: [answer]

    seen = RedisSeen("redis://localhost", "orders", client=Client())
    assert seen.claim([(b"one",)], "me") == [Verdict.NEW]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:secret@localhost:1/2", "redis://localhost:1/2"),
        ("unix:///run/redis.sock?db=1&password=secret", "unix:///run/redis.sock"),
        ("rediss://localhost:1?username=me&password=secret&ssl_ca_certs=ca.pem", "rediss://localhost:1"),
        ("unix://me:secret@/run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_no_error_holds_a_password_wherever_the_url_has_it(url: str, shown: str) -> None:
    seen = RedisSeen(url, "orders")
    with pytest.raises(SeenStoreError) as raised:
        seen.count()
    assert raised.value.attributes["store"] == shown
    assert "secret" not in f"{raised.value}{raised.value!r}"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:sec/ret@localhost",
        "redis://me:secret@localhost:port",
        "redis://localhost:1?db=1&socket_timeout=secret",
        "redis://[secret",
    ],
)
def test_a_url_that_is_none_is_refused_and_not_shown(url: str) -> None:
    """A password with a slash is no part of an address: it would be taken for a port, and the rest for a path."""
    with pytest.raises(SeenStoreError, match="is no URL of a Redis") as raised:
        RedisSeen(url, "orders")
    assert "ret" not in f"{raised.value}{raised.value!r}".replace("secrets", "")
    assert raised.value.__cause__ is None
