"""Which answers are a namespace's."""

from __future__ import annotations

import pytest

from isthmus.connectors.servicebus.administration.answer import StrangeAnswerError, check_answer

ATOM = b"http://www.w3.org/2005/Atom"
LIST = "https://ewr/$Resources/queues?%24skip=0&%24top=100"


@pytest.mark.parametrize(
    "body",
    [
        b'<feed xmlns="' + ATOM + b'"><title/></feed>',
        b'\xef\xbb\xbf<?xml version="1.0" encoding="utf-8"?>\r\n<feed xmlns="' + ATOM + b'"/>',
        b'<?xml version="1.0"?><!-- one --><!-- two --><a:feed xmlns:a="' + ATOM + b'"/>',
    ],
)
def test_a_feed_is_a_list(body: bytes) -> None:
    check_answer("GET", LIST, 200, "application/atom+xml", body)


def test_i1_an_entry_is_no_list() -> None:
    body = b'<entry xmlns="' + ATOM + b'"/>'
    check_answer("GET", "https://ewr/q", 200, "application/atom+xml", body)
    check_answer("PUT", "https://ewr/q", 201, "application/atom+xml", body)
    for skip in ("?$skip=0&$top=100", "?api-version=2021-05&%24skip=99"):
        with pytest.raises(StrangeAnswerError):
            check_answer("GET", f"https://ewr/$Resources/queues{skip}", 200, "application/atom+xml", body)


@pytest.mark.parametrize("body", [b"<feed/>", b"<feed xmlns='x'/>", b"<feeds xmlns='" + ATOM + b"'/>", b"feed", b" "])
def test_i1_anything_else_is_no_list(body: bytes) -> None:
    with pytest.raises(StrangeAnswerError):
        check_answer("GET", LIST, 200, "", body)


@pytest.mark.parametrize(("method", "status"), [("DELETE", 200), ("GET", 404), ("PUT", 409), ("GET", 503)])
def test_other_answers_are_left_to_the_client(method: str, status: int) -> None:
    check_answer(method, "https://ewr/q", status, "text/html", b"<html></html>")


def test_a_title_has_no_control_characters_and_is_short() -> None:
    with pytest.raises(StrangeAnswerError) as reported:
        check_answer("GET", LIST, 200, "text/html", b"<!DOCTYPE html><title>a\x1b[31m" + b"b" * 500 + b"</title>")
    assert str(reported.value) == "a page of HTML with the title 'a[31m" + "b" * 55 + "'"
