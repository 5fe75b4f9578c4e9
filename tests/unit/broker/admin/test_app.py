from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from isthmus.broker.admin import build_admin_app
from isthmus.broker.admin.app import INSTANCE_HEADER
from isthmus.broker.admin.document import Node, read
from isthmus.broker.health import HEALTHY, Health
from isthmus.broker.security.authority import Authority
from isthmus.broker.security.entity_rules import EngineRules
from isthmus.broker.security.keyring import Keyring
from isthmus.broker.security.sas import make_token
from isthmus.entities import Engine
from isthmus.entities.catalog.description import AuthorizationRule, QueueDescription
from isthmus.errors import StoreError
from isthmus.store import MemoryJournal
from isthmus.testing.clock import ManualClock

ATOM = "http://www.w3.org/2005/Atom"
NAMESPACE = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"


class Served:
    """The application over loopback, with a commit under the test's control."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = Engine(MemoryJournal(), self.clock)
        rules = [
            AuthorizationRule("root", "root-key", "root-key-2", ["Manage", "Send", "Listen"]),
            AuthorizationRule("sender", "sender-key", "sender-key-2", ["Send"]),
        ]
        self.keyring = Keyring(rules)
        self.authority = Authority(self.keyring, EngineRules(self.engine))
        self.commits = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.commit_error: Exception | None = None
        self.health = HEALTHY
        app = build_admin_app(
            self.engine,
            self.authority,
            self.clock,
            "ewr",
            commit=self._commit,
            health=lambda: self.health,
            token_clock=self.clock,
        )
        self.client = TestClient(TestServer(app))

    async def _commit(self) -> None:
        await self.gate.wait()
        self.commits += 1
        if self.commit_error is not None:
            raise self.commit_error

    def token(self, resource: str = "", name: str = "root", key: str = "") -> str:
        return make_token(f"https://h/{resource}", name, key or f"{name}-key", self.clock.wall_ms() + 60_000)

    async def request(
        self, method: str, path: str, body: str = "", token: str | None = None, **options: Any
    ) -> ClientResponse:
        headers = {"Authorization": self.token() if token is None else token, **options.pop("headers", {})}
        if not headers["Authorization"]:
            del headers["Authorization"]
        url = URL(path, encoded=True)
        return await self.client.request(method, url, data=body.encode() or None, headers=headers, **options)

    async def put(self, path: str, description: str, **options: Any) -> ClientResponse:
        return await self.request("PUT", f"{path}?api-version=2021-05", entry(description), **options)

    async def get(self, path: str, **options: Any) -> Node:
        response = await self.request("GET", path, **options)
        assert response.status == 200
        return read(await response.read())


def entry(description: str) -> str:
    return f'<entry xmlns="{ATOM}"><content type="application/xml">{description}</content></entry>'


def queue(inside: str = "") -> str:
    return f'<QueueDescription xmlns="{NAMESPACE}">{inside}</QueueDescription>'


def topic(inside: str = "") -> str:
    return f'<TopicDescription xmlns="{NAMESPACE}">{inside}</TopicDescription>'


def subscription(inside: str = "") -> str:
    return f'<SubscriptionDescription xmlns="{NAMESPACE}">{inside}</SubscriptionDescription>'


def rule(expression: str) -> str:
    return (
        f'<RuleDescription xmlns="{NAMESPACE}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        f'<Filter i:type="SqlFilter"><SqlExpression>{expression}</SqlExpression></Filter></RuleDescription>'
    )


async def refusal(response: ClientResponse) -> tuple[int, str]:
    """Status and detail of an error; checks the body's form."""
    node = read(await response.read())
    assert response.content_type == "application/xml"
    assert [child.name for child in node.children] == ["Code", "Detail"]
    assert node.find_text("Code") == str(response.status)
    detail = node.find_text("Detail") or ""
    assert " TrackingId:" in detail
    assert ", SystemTracker:ewr:" in detail
    assert ", Timestamp:2026-01-01T00:00:00" in detail
    return response.status, detail


def title(node: Node) -> str:
    return node.find_text("title") or ""


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await served.client.start_server()
    yield served
    await served.client.close()


async def test_health(served: Served) -> None:
    response = await served.request("GET", "/health", token="")
    assert (response.status, await response.json()) == (200, {"status": "healthy"})
    for health in (Health("unhealthy", "no room"), Health("stopping", "bye")):
        served.health = health
        response = await served.request("GET", "/health", token="")
        reported = {"status": health.status, "reason": health.reason}
        assert (response.status, await response.json()) == (503, reported)
    served.health = HEALTHY._replace(partition_stores_down=(1, 3))
    response = await served.request("GET", "/health", token="")
    assert (response.status, await response.json()) == (200, {"status": "healthy", "partition_stores_down": [1, 3]})
    await served.put("/health", queue())
    assert title(await served.get("/health?api-version=2021-05")) == "health"


async def test_create_answers_with_the_entry(served: Served) -> None:
    response = await served.put("/Orders", queue("<MaxDeliveryCount>3</MaxDeliveryCount>"))
    assert response.status == 201
    assert response.headers["Content-Type"] == "application/atom+xml;type=entry;charset=utf-8"
    node = read(await response.read())
    origin = str(served.client.make_url("")).rstrip("/")
    assert (node.namespace, node.name) == (ATOM, "entry")
    assert node.find_text("id") == f"{origin}/Orders"
    assert title(node) == "Orders"
    assert [child.name for child in node.children] == [
        "id",
        "title",
        "published",
        "updated",
        "author",
        "link",
        "content",
    ]
    author, link, content = node.find("author"), node.find("link"), node.find("content")
    assert author is not None
    assert author.find_text("name") == "ewr"
    assert link is not None
    assert link.attributes == {"rel": "self", "href": f"{origin}/Orders"}
    assert content is not None
    assert content.attributes == {"type": "application/xml"}
    assert content.children[0].find_text("MaxDeliveryCount") == "3"
    stored = served.engine.get_queue("orders")
    assert stored is not None
    assert stored.max_delivery_count == 3


async def test_ids_of_subscriptions_and_rules_have_the_capitals_that_clients_look_for(served: Served) -> None:
    await served.put("/t", topic())
    await served.put("/t/subscriptions/s", subscription())
    origin = str(served.client.make_url("")).rstrip("/")
    assert (await served.get("/t/subscriptions/S")).find_text("id") == f"{origin}/t/Subscriptions/s"
    found = await served.get("/t/subscriptions/s/rules/$Default")
    assert found.find_text("id") == f"{origin}/t/Subscriptions/s/Rules/$Default"
    assert found.find("author") is None


async def test_i2_a_change_is_answered_only_when_durable(served: Served) -> None:
    served.gate.clear()
    answer = asyncio.ensure_future(served.put("/q", queue()))
    # Another request comes through meanwhile, so the first is not merely slow.
    await served.get("/$Resources/queues")
    assert not answer.done()
    served.gate.set()
    assert (await answer).status == 201
    assert served.commits == 1
    await served.get("/q")
    assert served.commits == 1


async def test_i5_a_change_beside_one_under_way_is_a_conflict(served: Served) -> None:
    served.gate.clear()
    first = asyncio.ensure_future(served.put("/topic", topic()))
    await served.get("/$Resources/topics")
    for other in (served.put("/Topic", topic()), served.request("DELETE", "/TOPIC")):
        status, detail = await refusal(await other)
        assert status == 409
        assert detail.startswith("SubCode=40901. ")
    # Other entities are changed meanwhile, also those below it.
    second = asyncio.ensure_future(served.put("/topic/subscriptions/s", subscription()))
    await served.get("/$Resources/topics")
    served.gate.set()
    assert [(await answer).status for answer in (first, second)] == [201, 201]
    served.commit_error = StoreError("disk full")
    for _ in range(2):  # what failed is no longer under way
        assert (await served.put("/topic", topic(), headers={"If-Match": "*"})).status == 500


async def test_i2_a_commit_that_fails_is_an_error(served: Served) -> None:
    served.commit_error = StoreError("disk full at /secret/path")
    status, detail = await refusal(await served.put("/q", queue()))
    assert status == 500
    assert "could not store" in detail
    assert "/secret/path" not in detail


@pytest.mark.parametrize(
    ("token", "text"),
    [
        ("", "MissingToken: "),
        ("Bearer abc", "MalformedToken: "),
        ("SharedAccessSignature x", "MalformedToken: "),
        ("nobody", "InvalidSignature: The token has an invalid signature."),
        ("wrong", "InvalidSignature: The token has an invalid signature."),
        ("expired", "ExpiredToken: "),
        ("elsewhere", "InvalidAudience: "),
        ("sender", "Manage,EntityRead claims required for this operation."),
    ],
)
async def test_i1_no_operation_without_a_manage_token(served: Served, token: str, text: str) -> None:
    now_ms = served.clock.wall_ms()
    tokens = {
        "nobody": served.token("", "nobody"),
        "wrong": served.token("", "root", "wrong-key"),
        "expired": make_token("https://h", "root", "root-key", now_ms - 1),
        "elsewhere": served.token("other"),
        "sender": served.token("", "sender"),
    }
    for path in ("/q", "/$Resources/queues", "/t/subscriptions/s/rules", "/$namespaceinfo", "/"):
        status, detail = await refusal(await served.request("GET", path, token=tokens.get(token, token)))
        assert status == 401
        assert detail.startswith(text)
    for method in ("PUT", "DELETE", "POST"):
        assert (await served.request(method, "/q", token=tokens.get(token, token))).status == 401
    assert served.engine.list_queues() == []


async def test_i1_an_entity_s_manage_key_opens_that_entity(served: Served) -> None:
    own = AuthorizationRule("own", "own-key", "own-key-2", ["Manage", "Send", "Listen"])
    served.engine.create_queue("orders", QueueDescription(authorization_rules=[own]))
    served.engine.create_queue("orders-secret")
    assert title(await served.get("/orders", token=served.token("orders", "own"))) == "orders"
    for path in ("/orders-secret", "/$Resources/queues"):
        for scope in ("orders", path.strip("/"), ""):
            status, _ = await refusal(await served.request("GET", path, token=served.token(scope, "own")))
            assert status == 401


async def test_tokens_signed_as_the_javascript_client_does(served: Served) -> None:
    await served.put("/a%2Fb", queue())
    path = "a%2Fb?api-version=2021-05&enrich=false"
    token = make_token(f"https://h:443/{path}".lower(), "root", "root-key", served.clock.wall_ms() + 1000)
    assert title(await served.get(f"/{path}", token=token)) == "a/b"


async def test_unknown_entities_are_empty_feeds(served: Served) -> None:
    for path in ("/q", "/a/b", "/"):
        node = await served.get(path)
        assert (node.name, title(node)) == ("feed", "Publicly Listed Services")
        assert node.find("entry") is None


async def test_unknown_entities_are_not_found_otherwise(served: Served) -> None:
    await served.put("/t", topic())
    for method, path, body in (
        ("DELETE", "/q", ""),
        ("DELETE", "/t/subscriptions/s", ""),
        ("DELETE", "/t/subscriptions/s/rules/r", ""),
        ("PUT", "/q", queue()),
        ("PUT", "/t", queue()),
        ("PUT", "/x", topic()),
        ("PUT", "/t/subscriptions/s", subscription()),
        ("PUT", "/t/subscriptions/s/rules/r", rule("1=1")),
        ("GET", "/x/subscriptions", ""),
        ("GET", "/x/subscriptions/s", ""),
        ("GET", "/t/subscriptions/s", ""),
        ("GET", "/t/subscriptions/s/rules", ""),
        ("GET", "/t/subscriptions/s/rules/r", ""),
    ):
        response = await served.request(method, path, entry(body) if body else "", headers={"If-Match": "*"})
        status, detail = await refusal(response)
        assert status == 404, (method, path)
        assert detail.startswith("SubCode=40400. Not Found. ")


async def test_duplicates_conflict(served: Served) -> None:
    await served.put("/q", queue())
    for description in (queue(), topic()):
        status, detail = await refusal(await served.put("/Q", description))
        assert status == 409
        assert detail.startswith("SubCode=40900. Conflict. ")


async def test_an_update_replaces_the_whole_description(served: Served) -> None:
    await served.put("/q", queue("<LockDuration>PT5S</LockDuration><UserMetadata>m</UserMetadata>"))
    response = await served.put("/q", queue("<MaxDeliveryCount>3</MaxDeliveryCount>"), headers={"If-Match": "*"})
    assert response.status == 200
    assert served.engine.get_queue("q") == QueueDescription(max_delivery_count=3)


@pytest.mark.parametrize(("path", "made"), [("/q", queue), ("/t", topic)])
async def test_an_update_that_sends_back_the_namespaces_message_limit_sets_none(
    served: Served, path: str, made: Callable[[str], str]
) -> None:
    """The limit is shown where an entity has none of its own; clients send back what they read."""
    await served.put(path, made(""))
    asked = {"headers": {"If-Match": "*"}}
    shown = "<MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>"
    assert shown in await (await served.put(path, made(shown), **asked)).text()
    stored = served.engine.get_queue("q") or served.engine.get_topic("t")
    assert stored is not None
    assert stored.max_message_size_in_kilobytes is None
    for size in ("512", "1024"):  # one that was set stays set
        await served.put(path, made(shown.replace("1024", size)), **asked)
        stored = served.engine.get_queue("q") or served.engine.get_topic("t")
        assert stored is not None
        assert stored.max_message_size_in_kilobytes == int(size)


async def test_if_match_with_an_etag(served: Served) -> None:
    tag = (await served.put("/q", queue())).headers["ETag"]
    served.clock.advance(1000)
    assert (await served.put("/q", queue(), headers={"If-Match": tag})).status == 200
    response = await served.put("/q", queue(), headers={"If-Match": tag})
    assert response.status == 412


@pytest.mark.parametrize("element", ["RequiresSession", "RequiresDuplicateDetection", "EnablePartitioning"])
async def test_fixed_settings_cannot_be_updated(served: Served, element: str) -> None:
    await served.put("/q", queue())
    status, detail = await refusal(
        await served.put("/q", queue(f"<{element}>true</{element}>"), headers={"If-Match": "*"})
    )
    assert status == 400
    assert detail.startswith("SubCode=40000. ")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<",
        "plain",
        "<entry/>",
        f'<entry xmlns="{ATOM}"/>',
        f'<entry xmlns="{ATOM}"><content/></entry>',
        f'<entry xmlns="{ATOM}"><content><QueueDescription/></content></entry>',
        f'<feed xmlns="{ATOM}"/>',
        f'<!DOCTYPE x [<!ENTITY e "v">]>{entry(queue("<UserMetadata>&e;</UserMetadata>"))}',
        entry(subscription()),
        entry(f'<ConsumerGroupDescription xmlns="{NAMESPACE}"/>'),
        entry(queue("<LockDuration>soon</LockDuration>")),
        entry(queue("<MaxDeliveryCount>0</MaxDeliveryCount>")),
        entry(queue("<LockDuration>PT10M</LockDuration>")),
    ],
)
async def test_bad_bodies_are_refused_and_change_nothing(served: Served, body: str) -> None:
    status, detail = await refusal(await served.request("PUT", "/q", body))
    assert status == 400
    assert detail.startswith("SubCode=40000. Bad Request. ")
    assert served.engine.list_queues() == []


@pytest.mark.parametrize(
    "path",
    [
        "/bad%20name",
        "/bad%3Fname",
        "/-bad",
        "/" + "x" * 261,
        "/t/subscriptions/a%2Fb",
        "/t/subscriptions/" + "x" * 51,
        "/t/subscriptions/s/rules/" + "r" * 51,
    ],
)
async def test_bad_names_are_refused(served: Served, path: str) -> None:
    await served.put("/t", topic())
    await served.put("/t/subscriptions/s", subscription())
    body = rule("1=1") if "rules" in path else subscription() if "subscriptions" in path else queue()
    status, detail = await refusal(await served.put(path, body))
    assert status == 400
    assert detail.startswith("SubCode=40000. ")


async def test_bad_sql_is_refused_with_its_column(served: Served) -> None:
    await served.put("/t", topic())
    await served.put("/t/subscriptions/s", subscription())
    status, detail = await refusal(await served.put("/t/subscriptions/s/rules/r", rule("a = = 1")))
    assert status == 400
    assert detail.startswith("SubCode=40000. ")
    assert "column 5" in detail
    assert served.engine.get_rule("t", "s", "r") is None


async def test_a_default_rule_that_does_not_parse_makes_no_subscription(served: Served) -> None:
    await served.put("/t", topic())
    inside = rule("(").replace("RuleDescription", "DefaultRuleDescription")
    assert (await served.put("/t/subscriptions/s", subscription(inside))).status == 400
    assert served.engine.get_subscription("t", "s") is None


async def test_forwarding_needs_manage_on_the_target(served: Served) -> None:
    own = AuthorizationRule("own", "own-key", "own-key-2", ["Manage", "Send", "Listen"])
    served.engine.create_queue("target")
    served.engine.create_queue("mine", QueueDescription(authorization_rules=[own]))
    mine = served.token("mine", "own")
    rules = (
        "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Manage</AccessRights><AccessRights>Send</AccessRights>"
        "<AccessRights>Listen</AccessRights></Rights><KeyName>own</KeyName></AuthorizationRule></AuthorizationRules>"
    )
    for element, header in (
        ("ForwardTo", "ServiceBusSupplementaryAuthorization"),
        ("ForwardDeadLetteredMessagesTo", "ServiceBusDlqSupplementaryAuthorization"),
    ):
        body = queue(f"{rules}<{element}>sb://h/target</{element}>")
        update = {"If-Match": "*"}
        assert (await served.put("/mine", body, token=mine, headers=update)).status == 401
        supplements = {
            served.token("mine", "own"): True,
            served.token("target", "sender"): True,
            served.token("target"): False,
        }
        for supplement, refused in supplements.items():
            response = await served.put("/mine", body, token=mine, headers={**update, header: supplement})
            assert (response.status == 401) is refused
        assert (await served.put("/mine", body, headers=update)).status != 401


async def test_a_target_as_the_java_client_writes_what_it_read(served: Served) -> None:
    # It does not know the scheme "sb", takes "sb://h/target" for a name, and adds scheme and host to it.
    served.engine.create_queue("target")
    for element in ("ForwardTo", "ForwardDeadLetteredMessagesTo"):
        body = queue(f"<{element}>https://h/sb://h/target</{element}>")
        response = await served.put(f"/{element}", body)
        assert response.status == 201
        assert f"<{element}>sb://" in await response.text()
    assert served.engine.get_queue("ForwardTo").forward_to == "target"
    assert served.engine.get_queue("ForwardDeadLetteredMessagesTo").forward_dead_lettered_messages_to == "target"


async def test_lists_come_in_pages(served: Served) -> None:
    for number in range(7):
        served.engine.create_queue(f"q{number}")
    found, path, pages = [], "/$Resources/Queues?$skip=0&$top=3&api-version=2021-05", 0
    while path:
        feed = await served.get(path)
        pages += 1
        links = [link.attributes for link in feed.find_all("link")]
        found += [title(each) for each in feed.find_all("entry")]
        assert links[0]["rel"] == "self"
        assert [link["rel"] for link in links[1:]] in ([], ["next"])
        path = links[1]["href"].partition("/$Resources")[2] if len(links) > 1 else ""
        path = path and f"/$Resources{path}"
    assert found == [f"q{number}" for number in range(7)]
    assert pages == 3
    # A page that ends with the list has no second link.
    exact = await served.get("/$Resources/queues?$skip=4&$top=3")
    assert len(list(exact.find_all("link"))) == 1
    assert len(list((await served.get("/$Resources/queues?$skip=9")).find_all("entry"))) == 0


@pytest.mark.parametrize("query", ["?api-version=2017-04", ""])
async def test_an_old_api_version_refuses_settings_that_came_later(served: Served, query: str) -> None:
    later = "<MaxMessageSizeInKilobytes>512</MaxMessageSizeInKilobytes>"
    for path, made in (("/q", queue), ("/t", topic)):
        status, detail = await refusal(await served.request("PUT", path + query, entry(made(later))))
        assert status == 400
        assert (
            "MaxMessageSizeInKilobytes is a setting of api-version 2021-05 and later; the request has 2017-04."
            in detail
        )
        assert (await served.get(path + query)).name == "feed"  # it is not there
        assert (await served.put(path, made(later))).status == 201
        status, _ = await refusal(
            await served.request("PUT", path + query, entry(made(later)), headers={"If-Match": "*"})
        )
        assert status == 400
        assert (await served.request("PUT", path + query, entry(made()), headers={"If-Match": "*"})).status == 200
        answer = await served.request("GET", f"{path}?api-version=2021-05")
        assert later in await answer.text()


@pytest.mark.parametrize("query", ["$skip=-1", "$top=many", "$skip=" + "9" * 30, "api-version=latest", "api-version="])
async def test_bad_queries(served: Served, query: str) -> None:
    assert (await served.request("GET", f"/$Resources/queues?{query}")).status == 400


async def test_bodies_over_the_limit(served: Served) -> None:
    status, detail = await refusal(await served.request("PUT", "/q", entry(queue("x" * 300_000))))
    assert status == 413
    assert detail.startswith("SubCode=41300. ")


async def test_bodies_with_an_encoding_are_refused(served: Served) -> None:
    headers = {"Content-Encoding": "gzip"}
    status, detail = await refusal(await served.request("PUT", "/q", entry(queue()), headers=headers))
    assert status == 400
    assert "Content-Encoding 'gzip'" in detail


async def test_other_verbs_and_places(served: Served) -> None:
    for method, path in (("POST", "/q"), ("PATCH", "/q"), ("DELETE", "/$Resources/queues"), ("DELETE", "/")):
        status, detail = await refusal(await served.request(method, path))
        assert status == 405
        assert f"({method})" in detail
    assert (await served.request("GET", "/$Resources/hubs")).status == 400


async def test_a_start_has_an_id_that_no_other_has(served: Served) -> None:
    other = Served()
    await other.client.start_server()
    reported = [
        (await each.request("GET", "/$namespaceinfo?api-version=2021-05")).headers[INSTANCE_HEADER]
        for each in (served, served, other)
    ]
    await other.client.close()
    assert reported[0] == reported[1] != reported[2]


async def test_namespace_information(served: Served) -> None:
    node = await served.get("/$namespaceinfo?api-version=2021-05")
    content = node.find("content")
    assert content is not None
    info = content.children[0]
    assert info.name == "NamespaceInfo"
    assert {child.name: child.text for child in info.children} == {
        "CreatedTime": "2026-01-01T00:00:00.000Z",
        "MessagingSKU": "Premium",
        "MessagingUnits": "1",
        "ModifiedTime": "2026-01-01T00:00:00.000Z",
        "Name": "ewr",
        "NamespaceType": "Messaging",
    }


async def test_i3_an_unforeseen_error_is_answered(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("inside /secret/path")

    monkeypatch.setattr(served.engine, "list_queues", fail)
    status, detail = await refusal(await served.request("GET", "/$Resources/queues"))
    assert status == 500
    assert "/secret/path" not in detail


async def test_i3_a_path_with_line_ends_is_answered_as_any_other(served: Served) -> None:
    for path in ("/%0aapi-version=2021-05", "/a%0D%0Ab", "/%0a", "/q%E2%80%A8"):
        for method in ("GET", "POST", "PUT", "DELETE"):
            assert (await refusal(await served.request(method, path, token="x")))[0] in (400, 401)
            response = await served.request(method, path, entry(queue()))
            assert read(await response.read()).name in ("Error", "feed")
    assert served.engine.list_queues() == []


async def test_i4_logs_hold_no_token_and_no_key(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    rules = (
        "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Send</AccessRights></Rights><KeyName>k</KeyName>"
        "<PrimaryKey>PLANTED</PrimaryKey></AuthorizationRule></AuthorizationRules>"
    )
    await served.put("/q", queue(rules))
    await served.put("/q", queue(rules))
    await served.request("GET", "/q", token="SharedAccessSignature sr=x&sig=PLANTED&se=1&skn=root")
    assert "PUT /q: 201 by root" in caplog.text
    assert "PLANTED" not in caplog.text
    assert "sig=" not in caplog.text


async def test_i3_mutated_requests_are_answered_and_do_nothing_without_a_token(
    served: Served, long_count: Callable[[int], int], request: pytest.FixtureRequest
) -> None:
    seed = random.randrange(2**32) if request.config.getoption("--soak") else 1
    print(f"seed {seed}")
    chance = random.Random(seed)
    served.engine.create_topic("t")
    served.engine.create_subscription("t", "s")
    bodies = [
        entry(queue("<LockDuration>PT5S</LockDuration>")),
        entry(topic()),
        entry(subscription()),
        entry(rule("a = 1")),
    ]
    paths = [
        "/q?api-version=2021-05",
        "/t/subscriptions/s?enrich=true",
        "/t/subscriptions/s/rules/r",
        "/$Resources/queues?$skip=1&$top=2",
    ]

    def mutated(text: str) -> str:
        characters = list(text)
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(characters))
            characters[at : at + chance.randrange(3)] = chance.choice(
                ["", "<", "&", "%2", "/", "\u00e9", "0", ">", characters[at] * 9]
            )
        return "".join(characters)

    for _ in range(long_count(20_000)):
        kept = (c for c in mutated(chance.choice(paths)) if c.isascii() and c.isprintable() and c not in " #")
        path = "/" + "".join(kept).lstrip("/")
        method = chance.choice(["GET", "PUT", "PUT", "DELETE", "POST"])
        authorised = chance.random() < 0.7
        before = (served.commits, served.engine.list_queues())
        response = await served.request(
            method,
            path,
            mutated(chance.choice(bodies)),
            token=None if authorised else mutated(served.token("", "sender")) or "x",
            headers={"If-Match": "*"} if chance.random() < 0.3 else {},
        )
        document = read(await response.read() or b"<none/>")
        assert response.status < 500, (method, path)
        assert document.name in ("entry", "feed", "Error", "none"), (method, path)
        if not authorised:
            assert response.status in (400, 401), (method, path)
            assert (served.commits, served.engine.list_queues()) == before


async def test_lists_are_filtered_page_by_page(served: Served) -> None:
    for name in ("orders", "orders-eu", "orders-us", "returns"):
        served.engine.create_queue(name)
    served.engine.create_topic("orders-topic")
    served.engine.create_subscription("orders-topic", "all")
    path = "$Resources/queues?$top=2&$filter=startswith(path,%20'orders')%20eq%20true"
    names: list[str] = []
    while path:
        page = await served.get(path)
        names += [each.find_text("title") or "" for each in page.find_all("entry")]
        links = {each.attributes["rel"]: each.attributes["href"] for each in page.find_all("link")}
        path = (
            links.get("next", "").partition("/$Resources")[2]
            and "$Resources" + links["next"].partition("/$Resources")[2]
        )
    assert names == ["orders", "orders-eu", "orders-us"]
    topics = await served.get("$Resources/topics?$filter=messageCount%20eq%200")
    assert len(list(topics.find_all("entry"))) == 1
    for chosen, count in (("path%20eq%20'ALL'", 1), ("path%20ne%20'ALL'", 0)):
        subscriptions = await served.get(f"orders-topic/subscriptions?$filter={chosen}")
        assert len(list(subscriptions.find_all("entry"))) == count


@pytest.mark.parametrize("path", ["$Resources/queues?$filter=size", "t/subscriptions/s/rules?$filter=path%20eq%20'a'"])
async def test_filters_that_are_none_are_refused(served: Served, path: str) -> None:
    served.engine.create_topic("t")
    served.engine.create_subscription("t", "s")
    response = await served.request("GET", path)
    assert response.status == 400
    assert "SubCode=40000" in await response.text()


async def test_a_deletion_with_an_etag_is_of_what_the_client_saw(served: Served) -> None:
    await served.put("orders", queue())
    seen = (await served.request("GET", "orders")).headers["ETag"]
    changed = await served.put("orders", queue("<UserMetadata>x</UserMetadata>"), headers={"If-Match": seen})
    assert changed.headers["ETag"] != seen
    refused = await served.request("DELETE", "orders", headers={"If-Match": seen})
    assert refused.status == 412
    assert "SubCode=41200" in await refused.text()
    assert served.engine.get_queue("orders") is not None
    removed = await served.request("DELETE", "orders", headers={"If-Match": changed.headers["ETag"]})
    assert removed.status == 200
    assert served.engine.get_queue("orders") is None
    assert (await served.request("DELETE", "orders", headers={"If-Match": "*"})).status == 404


async def test_two_changes_in_one_millisecond_have_different_etags(served: Served) -> None:
    tags = {(await served.put("orders", queue())).headers["ETag"]}
    for text in ("a", "b"):
        answer = await served.put("orders", queue(f"<UserMetadata>{text}</UserMetadata>"), headers={"If-Match": "*"})
        tags.add(answer.headers["ETag"])
    assert len(tags) == 3


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("q", queue("<LockDuration>PT4S</LockDuration>"), "LockDuration"),
        ("q", queue("<LockDuration>PT5M1S</LockDuration>"), "LockDuration"),
        ("q", queue("<MaxMessageSizeInKilobytes>102401</MaxMessageSizeInKilobytes>"), "MaxMessageSizeInKilobytes"),
        ("q", queue("<MaxSizeInMegabytes>81921</MaxSizeInMegabytes>"), "MaxSizeInMegabytes"),
        ("q", queue(f"<UserMetadata>{'x' * 1025}</UserMetadata>"), "UserMetadata"),
        ("q", queue("<AutoDeleteOnIdle>PT4M59S</AutoDeleteOnIdle>"), "AutoDeleteOnIdle"),
        ("t", topic("<Status>ReceiveDisabled</Status>"), "Status"),
        ("t2", topic("<MaxMessageSizeInKilobytes>0</MaxMessageSizeInKilobytes>"), "MaxMessageSizeInKilobytes"),
        ("t1/subscriptions/s", subscription("<Status>SendDisabled</Status>"), "Status"),
        ("t1/subscriptions/" + "s" * 51, subscription(), "51 characters"),
        ("t1/subscriptions/all/rules/" + "r" * 51, rule("1=1"), "51 characters"),
        ("t1/subscriptions/all/rules/long", rule("a = '" + "x" * 1020 + "'"), "1,024|1024"),
    ],
)
async def test_values_that_the_service_refuses(served: Served, path: str, body: str, text: str) -> None:
    served.engine.create_topic("t1")
    served.engine.create_subscription("t1", "all")
    response = await served.put(path, body)
    assert response.status == 400
    answer = await response.text()
    assert "SubCode=40000" in answer
    assert any(each in answer for each in text.split("|"))
