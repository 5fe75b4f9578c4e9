"""The entities on a message's route that detect duplicates, by the answers of an administration."""

from __future__ import annotations

import pytest

from isthmus.errors import EntityNotFoundError, InvalidArgumentError, UnauthorizedError
from isthmus.operations.detection import check_detection, find_detection

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
NONE = f'<feed xmlns="{ATOM}"><title>Publicly Listed Services</title></feed>'


def entry(kind: str, **settings: str) -> str:
    inside = "".join(f"<{name}>{value}</{name}>" for name, value in settings.items())
    described = f'<{kind}Description xmlns="{SERVICE_BUS}">{inside}</{kind}Description>'
    return f'<entry xmlns="{ATOM}"><published>2026-01-01T00:00:00Z</published><content>{described}</content></entry>'


class Administration:
    def __init__(self, **answers: str | Exception) -> None:
        self.answers = answers
        self.subscriptions: dict[str, list[str]] = {}

    def __call__(self, path: str, entity: str) -> bytes:
        name, _, query = path.strip("/").partition("?")
        if name.endswith("/Subscriptions"):
            numbers = dict(each.split("=") for each in query.split("&"))
            skip, top = int(numbers["$skip"]), int(numbers["$top"])
            page = self.subscriptions[entity][skip : skip + top]
            return f'<feed xmlns="{ATOM}">{"".join(page)}</feed>'.encode()
        answer = self.answers.get(name, NONE)
        if isinstance(answer, Exception):
            raise answer
        return answer.encode()


DETECTING = entry("Queue", RequiresDuplicateDetection="true", DuplicateDetectionHistoryTimeWindow="PT10M")
PLAIN = entry("Queue", RequiresDuplicateDetection="false", CreatedAt="2026-02-03T04:05:06.7Z")


def test_i1_ids_are_kept_where_nothing_detects() -> None:
    found = find_detection(Administration(q=PLAIN), "/q/")
    assert not found.may_drop
    assert found.created_at == "2026-02-03T04:05:06.7Z"


@pytest.mark.parametrize("setting", ["ForwardTo", "ForwardDeadLetteredMessagesTo"])
@pytest.mark.parametrize(
    "address", ["onward", "https://ns.servicebus.windows.net/onward", "sb://localhost:5672/onward/"]
)
def test_i1_what_an_entity_forwards_to_counts(setting: str, address: str) -> None:
    ask = Administration(q=entry("Queue", **{setting: address}), onward=DETECTING)
    with pytest.raises(InvalidArgumentError, match=r"'onward', to which 'q' forwards, .*PT10M.*--new-message-ids"):
        check_detection(ask, "q", new_message_ids=False, keep_message_ids=False)


def test_i1_every_subscription_of_a_topic_counts() -> None:
    ask = Administration(t=entry("Topic"), onward=DETECTING)
    ask.subscriptions["t"] = [entry("Subscription")] * 119 + [entry("Subscription", ForwardTo="onward")]
    assert find_detection(ask, "t").detecting == {"onward": "PT10M"}


def test_a_circle_of_forwards_ends() -> None:
    ask = Administration(a=entry("Queue", ForwardTo="b"), b=entry("Queue", ForwardTo="A"))
    assert not find_detection(ask, "a").may_drop


@pytest.mark.parametrize("answer", [UnauthorizedError("no right"), "no XML", entry("Hub").replace("Description", "X")])
def test_i2_what_cannot_be_asked_may_detect(answer: str | Exception) -> None:
    ask = Administration(q=entry("Queue", ForwardTo="onward"), onward=answer)
    with pytest.raises(InvalidArgumentError, match=r"'onward'.*unknown.*Manage"):
        check_detection(ask, "q", new_message_ids=False, keep_message_ids=False)


def test_an_operator_may_choose() -> None:
    ask = Administration(q=DETECTING)
    assert check_detection(ask, "q", new_message_ids=True, keep_message_ids=False).may_drop
    assert check_detection(ask, "q", new_message_ids=False, keep_message_ids=True).may_drop
    with pytest.raises(InvalidArgumentError, match="one of"):
        check_detection(ask, "q", new_message_ids=True, keep_message_ids=True)


def test_an_entity_that_is_not_there_is_reported() -> None:
    with pytest.raises(EntityNotFoundError):
        find_detection(Administration(), "q")
    assert not find_detection(Administration(q=entry("Queue", ForwardTo="gone")), "q").may_drop
