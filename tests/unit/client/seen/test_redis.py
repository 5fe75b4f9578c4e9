"""The list in Redis, without a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isthmus.client.seen import RedisSeen, Verdict

pytest.importorskip("redis")


@pytest.mark.parametrize("answer", [b"new", "new"], ids=["bytes", "text"])
def test_a_client_that_decodes_its_answers_can_be_used(answer: object) -> None:
    """One of the application's own, with `decode_responses`."""

    class Client:
        def register_script(self, text: str) -> Callable[..., Any]:
            return lambda keys, args: [answer]

    seen = RedisSeen("redis://localhost", "orders", client=Client())
    assert seen.claim([(b"one",)], "me") == [Verdict.NEW]
