"""isthmus.connectors.request and isthmus.connectors.http: outcomes of requests."""

from __future__ import annotations

import threading
import time
from collections.abc import MutableMapping, Sequence

import pytest

from harness.check.until import until
from isthmus.bridge.delivery_event import Lost, Outcome, Send
from isthmus.bridge.port import TargetEvent
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.copier import CopyOptions
from isthmus.connectors.http.client import Answer, retry_after
from isthmus.connectors.http.option import read_target
from isthmus.connectors.http.signature import bearer_fault, signature_fault, signed
from isthmus.connectors.http.target import judge
from isthmus.connectors.request.requester import BusyError, RequestError
from isthmus.connectors.request.target import RequestPool, RequestTarget
from isthmus.connectors.request.threads import RequestThreads
from isthmus.errors import ConfigError

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
COPYING = CopyOptions(origin="", target="", hop_budget=0, mark="", mark_value="", trusts_provenance=False, policy="")
NO = Refusal(RefusalKind.MESSAGE, "400", "no")


def answer(status: int, **headers: str) -> Answer:
    return Answer(status, "Reason", {name.replace("_", "-"): value for name, value in headers.items()}, b"a body")


def test_statuses() -> None:
    assert judge("x", answer(204)) is None
    for status in (408, 425, 429, 500, 503):
        with pytest.raises(BusyError) as busy:
            judge("x", answer(status, retry_after="7"))
        assert (busy.value.seconds, busy.value.refusal.kind) == (7.0, RefusalKind.BLOCKED)
    for status in (301, 401, 403, 404, 405, 410):
        with pytest.raises(RequestError) as fatal:
            judge("x", answer(status))
        assert fatal.value.refusal.kind is RefusalKind.FATAL
    refusal = judge("x", answer(422))
    assert refusal is not None
    assert (refusal.kind, str(refusal)) == (RefusalKind.MESSAGE, "422: x: 422 Reason: a body")
    too_large = judge("x", answer(413))
    assert too_large is not None
    assert too_large.reason == "MessageTooLarge"


def test_retry_after_as_seconds_and_as_a_date() -> None:
    assert retry_after({"retry-after": "120"}) == 120
    assert retry_after({"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}, 946684790.0) == 9.0
    assert retry_after({"retry-after": "soon"}) == retry_after({}) == 0


def test_signatures() -> None:
    # The example of the Standard Webhooks specification.
    headers = signed("standard", SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', 1614265330)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert not signature_fault("standard", SECRET, headers, b'{"test": 2432232314}', 1614265330.0)
    for odd in ("whsec_é", "whsec_a"):
        assert not signature_fault("standard", odd, signed("standard", odd, "m", b"", 1614265330), b"", 1614265330.0)
    several = {**headers, "webhook-signature": "v1,AAAA " + headers["webhook-signature"]}
    assert not signature_fault("standard", SECRET, several, b'{"test": 2432232314}', 1614265330.0)
    assert "wrong" in signature_fault("standard", SECRET, headers, b"{}", 1614265330.0)
    assert "300 s" in signature_fault("standard", SECRET, headers, b'{"test": 2432232314}', 1614265631.0)
    hub = signed("sha256", "It's a Secret to Everybody", "", b"Hello, World!", 0)
    assert hub == {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}
    assert not signature_fault("sha256", "It's a Secret to Everybody", hub, b"Hello, World!", 0.0)
    assert not bearer_fault("abc", {"authorization": "Bearer abc"})
    assert bearer_fault("abc", {"authorization": "Bearer abd"}) == bearer_fault("abc", {})


def test_options_that_would_give_a_secret_away_are_refused() -> None:
    with pytest.raises(ConfigError, match="without TLS"):
        read_target({"url": "http://example.com", "entity": "x", "auth": "bearer", "secret": "env:A"})
    with pytest.raises(ConfigError, match="go together"):
        read_target({"url": "https://example.com", "entity": "x", "auth": "hmac"})


class Fake:
    """A system that answers what it is set to."""

    entity = "x"
    batch = 2
    batch_bytes = 100

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.sent: list[Sequence[bytes]] = []
        self.times: list[float] = []

    def open(self) -> str:
        return "identity"

    def send(self, payloads: Sequence[bytes]) -> Sequence[Refusal | None]:
        self.sent.append(payloads)
        self.times.append(time.monotonic())
        found = self.answers.pop(0) if self.answers else None
        if isinstance(found, Exception):
            raise found
        return [NO if found == "no" else None] * len(payloads)

    def close(self) -> None:
        pass


def run(fake: Fake, *payloads: bytes, pauses: MutableMapping[tuple[str, str], float] | None = None) -> RequestThreads:
    news = threading.Semaphore(0)
    threads = RequestThreads(fake, 1, news.release, pauses)
    for number, payload in enumerate(payloads):
        threads.send(number, [payload])
    threads.start()
    return threads


def wait(threads: RequestThreads, count: int) -> list[tuple[int, Refusal | None]]:
    found: list[tuple[int, Refusal | None]] = []

    def is_whole() -> bool:
        accepted, refused = threads.take()
        found.extend([*((number, None) for number in accepted), *refused])
        return len(found) >= count

    until(is_whole)
    return found


def test_i1_requests_are_made_in_order_in_batches() -> None:
    fake = Fake(None, "no")
    threads = run(fake, b"a", b"b", b"c")
    assert wait(threads, 3) == [(0, None), (1, None), (2, NO)]
    assert fake.sent == [[b"a", b"b"], [b"c"]]
    threads.stop()
    threads.join(60)
    assert not threads.is_alive()


def test_i2_what_a_system_asks_to_wait_is_waited() -> None:
    busy = Refusal(RefusalKind.BLOCKED, "503", "later")
    fake = Fake(BusyError(busy, 0.2))
    threads = run(fake, b"a", b"b", b"c")
    assert wait(threads, 3) == [(0, busy), (1, busy), (2, None)]
    assert fake.times[1] - fake.times[0] >= 0.2
    threads.stop()
    threads.join(60)


def test_i2_what_a_system_asks_to_wait_is_waited_over_openings() -> None:
    """A route whose target takes nothing for half a minute is opened again; a system may ask for more."""
    busy = Refusal(RefusalKind.BLOCKED, "429", "later")
    pauses: dict[tuple[str, str], float] = {}
    fake = Fake(BusyError(busy, 3600.0))
    threads = run(fake, b"a", pauses=pauses)
    assert wait(threads, 1) == [(0, busy)]
    threads.stop()
    threads.join(60)
    paused_until = pauses["identity", "x"]
    assert paused_until > time.monotonic() + 200
    threads = run(fake, b"a", pauses=pauses)
    until(lambda: threads.identity is not None)
    assert threads.waits_until == paused_until
    threads.stop()
    threads.join(60)
    assert len(fake.sent) == 1


def test_i3_after_a_failure_nothing_more_is_sent() -> None:
    lost = Refusal(RefusalKind.UNKNOWN, "", "no answer")
    fake = Fake(None, RequestError(lost))
    threads = run(fake, b"a", b"b", b"c", b"d", b"e")
    threads.join(60)
    assert threads.take() == ([0, 1], [])
    assert threads.lost == lost
    assert len(fake.sent) == 2


BUSY = Refusal(RefusalKind.BLOCKED, "503", "later")
NO_ANSWER = Refusal(RefusalKind.UNKNOWN, "", "no answer")


def test_i4_a_failure_is_reported_after_the_answers_to_what_was_under_way() -> None:
    """One connection of many that is reset would have all the others' messages sent again, though they were taken."""
    gate, is_under_way = threading.Event(), threading.Event()

    class Slow(Fake):
        batch = 1

        def send(self, payloads: Sequence[bytes]) -> Sequence[Refusal | None]:
            if payloads == [b"slow"]:
                is_under_way.set()
                assert gate.wait(60)
                return [None]
            assert is_under_way.wait(60)
            raise RequestError(Refusal(RefusalKind.UNKNOWN, "", "reset"))

    pool = RequestPool()
    target = RequestTarget(pool, 1, Slow, copying=COPYING, origin_identity="", parallel=2, stall_seconds=60.0)
    target.open()
    events: list[TargetEvent] = []
    limit = time.monotonic() + 60
    while not events and time.monotonic() < limit:
        events += target.poll(time.monotonic())
    target.send(Send([b"slow", b"reset"]))
    threads = target._threads
    assert threads is not None
    until(lambda: threads._failure is not None)
    reported = list(target.poll(time.monotonic()))
    assert not any(isinstance(each, Lost) for each in reported)
    gate.set()
    while not any(isinstance(each, Lost) for each in reported) and time.monotonic() < limit:
        reported += target.poll(time.monotonic())
    assert Outcome(0, 0) in reported
    assert isinstance(reported[-1], Lost)
    target.close()
    pool.close()


def busy_but_for(*answered: int) -> BusyError:
    found = BusyError(BUSY)
    found.answered = dict.fromkeys(answered)
    return found


def failed_but_for(*answered: int) -> RequestError:
    found = RequestError(NO_ANSWER)
    found.answered = dict.fromkeys(answered)
    return found


def test_a_queue_that_is_the_source_takes_nothing() -> None:
    pool, news = RequestPool(), threading.Event()
    fake = Fake(None)
    copying = CopyOptions(
        origin=f"ewr/{fake.entity}",
        target="jfk",
        hop_budget=8,
        mark="",
        mark_value="",
        trusts_provenance=False,
        policy="",
    )
    target = RequestTarget(
        pool, 1, lambda: fake, copying=copying, origin_identity="identity", parallel=1, stall_seconds=60.0
    )
    pool.mark = lambda key: news.set()  # type: ignore[method-assign]
    target.open()
    found: list[TargetEvent] = []
    while not found:
        assert news.wait(60.0)
        news.clear()
        found += target.poll(time.monotonic())
    (lost,) = found
    assert isinstance(lost, Lost)
    assert lost.refusal.kind is RefusalKind.FATAL
    assert "jfk leads to the namespace of ewr" in lost.refusal.description
    target.close()
    pool.close()


@pytest.mark.parametrize(
    ("answers", "reported"),
    [
        ((None, "no"), Outcome(0, 0, NO, (0, 1))),
        ((busy_but_for(1), None), Outcome(0, 0, BUSY, (1, 2, 3))),
        ((None, RequestError(NO_ANSWER)), Outcome(0, 0, NO_ANSWER, (0, 1))),
        ((failed_but_for(1),), Outcome(0, 0, NO_ANSWER, (1,))),
    ],
)
def test_what_was_taken_of_an_envelope_is_reported_with_its_refusal(
    answers: Sequence[object], reported: Outcome
) -> None:
    """Sent again with the others, it would be there twice."""
    pool, news = RequestPool(), threading.Event()
    fake = Fake(*answers)
    target = RequestTarget(pool, 1, lambda: fake, copying=COPYING, origin_identity="", parallel=1, stall_seconds=60.0)
    pool.mark = lambda key: news.set()  # type: ignore[method-assign]
    target.open()
    found: list[TargetEvent] = []
    limit = time.monotonic() + 60
    while not any(isinstance(each, Outcome) for each in found) and time.monotonic() < limit:
        was_open = bool(found)
        found += target.poll(time.monotonic())
        if found and not was_open:
            target.send(Send([b"a", b"b", b"c", b"d"], is_envelope=True))
        news.wait(1.0)
        news.clear()
    outcomes = [each for each in found if isinstance(each, Outcome)]
    assert outcomes == [reported]
    assert isinstance(found[-1], Lost) is (reported.refusal == NO_ANSWER)
    target.close()
    pool.close()
