"""The official administration client, sync and async, against the administration API over HTTPS.

The client is unmodified: it is given a connection string and the file of our certificate authority.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncClient
from azure.servicebus.management import (
    AccessRights,
    ApiVersion,
    AuthorizationRule,
    CorrelationRuleFilter,
    EntityAvailabilityStatus,
    EntityStatus,
    FalseRuleFilter,
    MessagingSku,
    NamespaceType,
    QueueProperties,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    SubscriptionProperties,
    TopicProperties,
    TrueRuleFilter,
)

from isthmus.broker.admin import build_admin_app
from isthmus.broker.security.authority import Authority
from isthmus.broker.security.certificate import CertificateFiles, ensure_certificate, server_context
from isthmus.broker.security.keyring import Keyring
from isthmus.broker.security.rule import new_key
from isthmus.clock import SystemClock
from isthmus.entities import AuthorizationRule as StoredRule
from isthmus.entities import Engine
from isthmus.store import MemoryJournal

INFINITE = timedelta(days=10675199, seconds=10085, microseconds=477581)


class Endpoint:
    """The application on a loopback HTTPS port, in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        clock = SystemClock()
        self.certificate: CertificateFiles = ensure_certificate(folder / "tls", now_ms=clock.wall_ms())
        self.keyring = Keyring.open(folder / "keys.json", clock)
        self._journal = MemoryJournal()
        self._engine = Engine(self._journal, clock)
        authority = Authority(self.keyring)
        self._app = build_admin_app(self._engine, authority, clock, "interop", commit=self._commit)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def connection_string(self) -> str:
        return self.keyring.connection_string(f"localhost:{self.port}", emulator=True)

    def client(self, **options: Any) -> ServiceBusAdministrationClient:
        options = {"connection_verify": str(self.certificate.authority), "retry_total": 0, **options}
        return ServiceBusAdministrationClient.from_connection_string(self.connection_string, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        options = {"connection_verify": str(self.certificate.authority), "retry_total": 0, **options}
        return AsyncClient.from_connection_string(self.connection_string, **options)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._engine.close()

    async def _commit(self) -> None:
        commit = self._engine.begin_commit()
        if commit is not None:
            self._journal.sync()
            self._engine.end_commit(commit)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = web.AppRunner(self._app)
        self._loop.run_until_complete(runner.setup())
        context = server_context(self.certificate.certificate, self.certificate.key)
        self._loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start())
        self.port = runner.addresses[0][1]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    endpoint = Endpoint(tmp_path_factory.mktemp("namespace"))
    yield endpoint
    endpoint.close()


@pytest.fixture
def admin(endpoint: Endpoint) -> Iterator[ServiceBusAdministrationClient]:
    with endpoint.client() as client:
        yield client
        for queue in client.list_queues():
            client.delete_queue(queue.name)
        for topic in client.list_topics():
            client.delete_topic(topic.name)


@pytest_asyncio.fixture
async def async_admin(endpoint: Endpoint) -> AsyncIterator[AsyncClient]:
    async with endpoint.async_client() as client:
        yield client
        async for queue in client.list_queues():
            await client.delete_queue(queue.name)
        async for topic in client.list_topics():
            await client.delete_topic(topic.name)


def code(error: pytest.ExceptionInfo[HttpResponseError]) -> int | None:
    return error.value.status_code


# Queues.


def test_queue_with_defaults(admin: ServiceBusAdministrationClient) -> None:
    created = admin.create_queue("orders")
    for queue in (created, admin.get_queue("orders"), *admin.list_queues()):
        assert isinstance(queue, QueueProperties)
        assert queue.name == "orders"
        assert queue.lock_duration == timedelta(minutes=1)
        assert queue.max_size_in_megabytes == 1024
        assert queue.default_message_time_to_live == INFINITE
        assert queue.auto_delete_on_idle == INFINITE
        assert queue.duplicate_detection_history_time_window == timedelta(minutes=10)
        assert queue.max_delivery_count == 10
        assert queue.enable_batched_operations is True
        assert queue.enable_express is False
        assert queue.enable_partitioning is False
        assert queue.requires_duplicate_detection is False
        assert queue.requires_session is False
        assert queue.dead_lettering_on_message_expiration is False
        assert queue.status == EntityStatus.ACTIVE
        assert queue.availability_status == EntityAvailabilityStatus.AVAILABLE
        assert not queue.authorization_rules
        assert queue.forward_to is None
        assert queue.user_metadata is None
        assert queue.max_message_size_in_kilobytes == 1024


def test_queue_with_every_setting(admin: ServiceBusAdministrationClient) -> None:
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        key_name="partner",
        primary_key="p" * 44,
        secondary_key="s" * 44,
        rights=[AccessRights.SEND, AccessRights.LISTEN],
        created_at_utc=None,
        modified_at_utc=None,
    )
    settings: dict[str, Any] = {
        "auto_delete_on_idle": timedelta(minutes=10),
        "dead_lettering_on_message_expiration": True,
        "default_message_time_to_live": "PT90S",
        "duplicate_detection_history_time_window": timedelta(minutes=2),
        "enable_batched_operations": False,
        "enable_express": True,
        "lock_duration": timedelta(seconds=13),
        "max_delivery_count": 14,
        "max_size_in_megabytes": 3072,
        "requires_duplicate_detection": True,
        "user_metadata": "owner: <stock> & \u00e9\u4e16",
        "max_message_size_in_kilobytes": 2048,
        "status": EntityStatus.SEND_DISABLED,
    }
    admin.create_queue("orders", authorization_rules=[rule], **settings)
    queue = admin.get_queue("orders")
    settings["default_message_time_to_live"] = timedelta(seconds=90)
    assert {name: getattr(queue, "status" if name == "status" else name) for name in settings} == settings
    assert queue.authorization_rules is not None
    (stored,) = queue.authorization_rules
    assert (stored.key_name, stored.primary_key, stored.secondary_key) == ("partner", "p" * 44, "s" * 44)
    assert stored.rights == [AccessRights.SEND, AccessRights.LISTEN]
    assert stored.type == "SharedAccessAuthorizationRule"
    assert stored.claim_type == "SharedAccessKey"


def test_queue_runtime_properties(admin: ServiceBusAdministrationClient) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    admin.create_queue("orders")
    for runtime in (admin.get_queue_runtime_properties("orders"), *admin.list_queues_runtime_properties()):
        assert runtime.name == "orders"
        assert runtime.total_message_count == 0
        assert runtime.active_message_count == 0
        assert runtime.dead_letter_message_count == 0
        assert runtime.scheduled_message_count == 0
        assert runtime.transfer_message_count == 0
        assert runtime.transfer_dead_letter_message_count == 0
        assert runtime.size_in_bytes == 0
        assert runtime.created_at_utc is not None
        assert before < runtime.created_at_utc < datetime.now(UTC) + timedelta(seconds=1)
        assert runtime.updated_at_utc is not None
        assert runtime.accessed_at_utc == datetime(1, 1, 1)  # noqa: DTZ001 - what the client makes of "never"


def test_queue_update_replaces(admin: ServiceBusAdministrationClient) -> None:
    queue = admin.create_queue("orders", user_metadata="old", max_delivery_count=3)
    queue.lock_duration = timedelta(seconds=30)
    queue.user_metadata = None
    admin.update_queue(queue)
    updated = admin.get_queue("orders")
    assert (updated.lock_duration, updated.user_metadata, updated.max_delivery_count) == (
        timedelta(seconds=30),
        None,
        3,
    )
    admin.update_queue(updated, max_delivery_count=7, status=EntityStatus.DISABLED)
    updated = admin.get_queue("orders")
    assert (updated.max_delivery_count, updated.status) == (7, EntityStatus.DISABLED)
    admin.update_queue({**dict(updated.items()), "lock_duration": None, "max_delivery_count": 9})
    assert admin.get_queue("orders").lock_duration == timedelta(minutes=1)


def test_queue_refusals(admin: ServiceBusAdministrationClient) -> None:
    queue = admin.create_queue("orders")
    with pytest.raises(ResourceExistsError, match="SubCode=40900"):
        admin.create_queue("ORDERS")
    queue.requires_session = True
    with pytest.raises(HttpResponseError, match="SubCode=40000") as error:
        admin.update_queue(queue)
    assert code(error) == 400
    for settings in (
        {"lock_duration": timedelta(minutes=6)},
        {"max_delivery_count": 0},
        {"auto_delete_on_idle": "PT1M"},
    ):
        with pytest.raises(HttpResponseError, match="SubCode=40000") as error:
            admin.create_queue("other", **settings)
        assert code(error) == 400
    for name in ("a b", "-a", "a" * 261, "a?b", "\u00e9"):
        with pytest.raises(HttpResponseError) as error:
            admin.create_queue(name)
        assert code(error) == 400, name
    for call in (admin.get_queue, admin.get_queue_runtime_properties, admin.delete_queue):
        with pytest.raises(ResourceNotFoundError):
            call("missing")
    with pytest.raises(ResourceNotFoundError, match="SubCode=40400"):
        admin.update_queue(dict(queue.items()) | {"name": "missing"})
    assert [each.name for each in admin.list_queues()] == ["orders"]


def test_queue_names_with_slashes(admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("eu/west/Orders.v1-a_b")
    assert admin.get_queue("EU/west/orders.v1-a_b").max_delivery_count == 10
    assert [queue.name for queue in admin.list_queues()] == ["eu/west/Orders.v1-a_b"]
    admin.delete_queue("eu/west/Orders.v1-a_b")
    assert list(admin.list_queues()) == []


def test_lists_longer_than_a_page(admin: ServiceBusAdministrationClient) -> None:
    names = [f"q{number:03}" for number in range(203)]
    for name in names:
        admin.create_queue(name)
    assert [queue.name for queue in admin.list_queues()] == names
    assert [queue.name for queue in admin.list_queues(start_index=150)] == names[150:]
    assert [queue.name for queue in admin.list_queues_runtime_properties(max_page_size=101)] == names


# Topics.


def test_topic_with_defaults(admin: ServiceBusAdministrationClient) -> None:
    created = admin.create_topic("flights")
    for topic in (created, admin.get_topic("flights"), *admin.list_topics()):
        assert isinstance(topic, TopicProperties)
        assert topic.name == "flights"
        assert topic.default_message_time_to_live == INFINITE
        assert topic.max_size_in_megabytes == 1024
        assert topic.requires_duplicate_detection is False
        assert topic.duplicate_detection_history_time_window == timedelta(minutes=10)
        assert topic.enable_batched_operations is True
        assert topic.filtering_messages_before_publishing is False
        assert topic.support_ordering is True
        assert topic.auto_delete_on_idle == INFINITE
        assert topic.enable_partitioning is False
        assert topic.enable_express is False
        assert topic.status == EntityStatus.ACTIVE
        assert topic.availability_status == EntityAvailabilityStatus.AVAILABLE


def test_topic_lifecycle(admin: ServiceBusAdministrationClient) -> None:
    topic = admin.create_topic(
        "flights",
        default_message_time_to_live=timedelta(hours=1),
        requires_duplicate_detection=True,
        user_metadata="m",
        max_size_in_megabytes=2048,
    )
    topic.default_message_time_to_live = timedelta(hours=2)
    admin.update_topic(topic)
    updated = admin.get_topic("flights")
    assert updated.default_message_time_to_live == timedelta(hours=2)
    assert updated.requires_duplicate_detection is True
    assert (updated.user_metadata, updated.max_size_in_megabytes) == ("m", 2048)
    topic.requires_duplicate_detection = False
    with pytest.raises(HttpResponseError, match="SubCode=40000"):
        admin.update_topic(topic)
    with pytest.raises(ResourceExistsError):
        admin.create_topic("flights")
    with pytest.raises(ResourceExistsError):
        admin.create_queue("flights")
    admin.delete_topic("flights")
    for call in (admin.get_topic, admin.get_topic_runtime_properties, admin.delete_topic):
        with pytest.raises(ResourceNotFoundError):
            call("flights")


def test_topic_runtime_properties(admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("flights")
    admin.create_subscription("flights", "all")
    admin.create_subscription("flights", "some")
    admin.create_rule("flights", "some", "sql", filter=SqlRuleFilter("a = 1"))
    admin.create_rule("flights", "some", "correlated", filter=CorrelationRuleFilter(label="x"))
    for runtime in (admin.get_topic_runtime_properties("flights"), *admin.list_topics_runtime_properties()):
        assert runtime.name == "flights"
        assert runtime.subscription_count == 2
        assert runtime.correlation_filter_count == 1
        assert runtime.sql_filter_count is not None
        assert runtime.sql_filter_count >= 1
        assert runtime.size_in_bytes == 0
        assert runtime.scheduled_message_count == 0


def test_a_topic_goes_with_its_subscriptions(admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("flights")
    admin.create_subscription("flights", "all")
    admin.delete_topic("flights")
    admin.create_topic("flights")
    assert list(admin.list_subscriptions("flights")) == []


# Subscriptions.


def test_subscription_lifecycle(admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("flights")
    created = admin.create_subscription("flights", "all")
    for subscription in (created, admin.get_subscription("flights", "all"), *admin.list_subscriptions("flights")):
        assert isinstance(subscription, SubscriptionProperties)
        assert subscription.name == "all"
        assert subscription.lock_duration == timedelta(minutes=1)
        assert subscription.requires_session is False
        assert subscription.default_message_time_to_live == INFINITE
        assert subscription.dead_lettering_on_message_expiration is False
        assert subscription.dead_lettering_on_filter_evaluation_exceptions is True
        assert subscription.max_delivery_count == 10
        assert subscription.enable_batched_operations is True
        assert subscription.status == EntityStatus.ACTIVE
        assert subscription.auto_delete_on_idle == INFINITE
        assert subscription.availability_status == EntityAvailabilityStatus.AVAILABLE
    created.lock_duration = timedelta(seconds=20)
    created.dead_lettering_on_filter_evaluation_exceptions = False
    created.user_metadata = "m"
    admin.update_subscription("flights", created)
    updated = admin.get_subscription("flights", "all")
    assert updated.lock_duration == timedelta(seconds=20)
    assert updated.dead_lettering_on_filter_evaluation_exceptions is False
    assert updated.user_metadata == "m"
    created.requires_session = True
    with pytest.raises(HttpResponseError, match="SubCode=40000"):
        admin.update_subscription("flights", created)
    with pytest.raises(ResourceExistsError):
        admin.create_subscription("flights", "ALL")
    for name in ("a" * 51, "a b", "a/b"):
        with pytest.raises(HttpResponseError) as error:
            admin.create_subscription("flights", name)
        assert code(error) == 400
    admin.delete_subscription("flights", "all")
    for call in (admin.get_subscription, admin.get_subscription_runtime_properties, admin.delete_subscription):
        with pytest.raises(ResourceNotFoundError):
            call("flights", "all")
    with pytest.raises(ResourceNotFoundError):
        admin.create_subscription("missing", "all")


def test_subscription_runtime_properties(admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("flights")
    admin.create_subscription("flights", "all")
    runtimes = admin.list_subscriptions_runtime_properties("flights")
    for runtime in (admin.get_subscription_runtime_properties("flights", "all"), *runtimes):
        assert runtime.name == "all"
        assert runtime.total_message_count == 0
        assert runtime.active_message_count == 0
        assert runtime.dead_letter_message_count == 0
        assert runtime.transfer_message_count == 0
        assert runtime.transfer_dead_letter_message_count == 0
        assert runtime.created_at_utc is not None


def test_subscriptions_longer_than_a_page(admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("a/b")
    names = [f"s{number:03}" for number in range(101)]
    for name in names:
        admin.create_subscription("a/b", name)
    assert [subscription.name for subscription in admin.list_subscriptions("a/b")] == names


# Rules.


@pytest.fixture
def rules(admin: ServiceBusAdministrationClient) -> ServiceBusAdministrationClient:
    admin.create_topic("t/1")
    admin.create_subscription("t/1", "s")
    return admin


def test_default_rule(rules: ServiceBusAdministrationClient) -> None:
    (rule,) = rules.list_rules("t/1", "s")
    assert rule.name == "$Default"
    assert isinstance(rule.filter, TrueRuleFilter)
    assert rule.action is None
    assert rules.get_rule("t/1", "s", "$Default").created_at_utc is not None
    rules.delete_rule("t/1", "s", "$Default")
    assert list(rules.list_rules("t/1", "s")) == []
    with pytest.raises(ResourceNotFoundError):
        rules.get_rule("t/1", "s", "$Default")
    with pytest.raises(ResourceNotFoundError):
        rules.delete_rule("t/1", "s", "$Default")


def test_sql_rule_with_parameters_and_action(rules: ServiceBusAdministrationClient) -> None:
    parameters: dict[str, Any] = {
        "@text": "a<b",
        "@number": 5,
        "@big": 2**40,
        "@fraction": 1.5,
        "@flag": True,
        "@day": datetime(2020, 7, 5, 11, 12, 13),  # noqa: DTZ001 - the client sends a time without a zone
        "@instant": datetime(2020, 7, 5, 11, 12, 13, tzinfo=UTC),
        "@span": timedelta(days=1, hours=2, minutes=3),
    }
    given = SqlRuleFilter("a = @text OR n > @number OR d = @day", parameters)
    rules.create_rule("t/1", "s", "sql", filter=given, action=SqlRuleAction("SET a = @x", {"@x": 1}))
    listed = {rule.name: rule for rule in rules.list_rules("t/1", "s")}
    for rule in (rules.get_rule("t/1", "s", "sql"), listed["sql"]):
        assert isinstance(rule.filter, SqlRuleFilter)
        assert rule.filter.sql_expression == given.sql_expression
        assert rule.filter.parameters == parameters
        assert isinstance(rule.action, SqlRuleAction)
        assert rule.action.sql_expression == "SET a = @x"
        assert rule.action.parameters == {"@x": 1}


def test_correlation_rule(rules: ServiceBusAdministrationClient) -> None:
    fields = {
        "correlation_id": "c",
        "message_id": "m",
        "to": "t",
        "reply_to": "r",
        "label": "l",
        "session_id": "s",
        "reply_to_session_id": "rs",
        "content_type": "ct",
    }
    properties: dict[str, Any] = {
        "text": "v",
        "number": 5,
        "big": 2**40,
        "fraction": 0.25,
        "flag": False,
        "day": datetime(2020, 7, 5, 11, 12, 13),  # noqa: DTZ001 - the client sends a time without a zone
        "span": timedelta(days=1, hours=2, minutes=3),
    }
    rules.create_rule("t/1", "s", "correlated", filter=CorrelationRuleFilter(**fields, properties=properties))
    rule = rules.get_rule("t/1", "s", "correlated")
    assert isinstance(rule.filter, CorrelationRuleFilter)
    assert {name: getattr(rule.filter, name) for name in fields} == fields
    assert rule.filter.properties == properties
    assert rule.action is None


def test_false_rule_and_update(rules: ServiceBusAdministrationClient) -> None:
    rules.create_rule("t/1", "s", "none", filter=FalseRuleFilter())
    rule = rules.get_rule("t/1", "s", "none")
    assert isinstance(rule.filter, FalseRuleFilter)
    created_at = rule.created_at_utc
    rule.filter = SqlRuleFilter("replication IS NULL OR replication <> 1")
    rule.action = SqlRuleAction("SET replication = 1")
    rules.update_rule("t/1", "s", rule)
    updated = rules.get_rule("t/1", "s", "none")
    assert isinstance(updated.filter, SqlRuleFilter)
    assert updated.filter.sql_expression == "replication IS NULL OR replication <> 1"
    assert isinstance(updated.action, SqlRuleAction)
    assert updated.created_at_utc == created_at
    rules.update_rule("t/1", "s", updated, filter=TrueRuleFilter(), action=None)
    assert isinstance(rules.get_rule("t/1", "s", "none").filter, TrueRuleFilter)


def test_rule_refusals(rules: ServiceBusAdministrationClient) -> None:
    for expression in ("a = = 1", "", "a IN ()", "sys.NoSuch = 1", "(a = 1", "a = 'x"):
        with pytest.raises(HttpResponseError, match=r"(?s)SubCode=40000.*column \d+") as error:
            rules.create_rule("t/1", "s", "bad", filter=SqlRuleFilter(expression))
        assert code(error) == 400, expression
    with pytest.raises(HttpResponseError, match="SubCode=40000"):
        rules.create_rule("t/1", "s", "bad", filter=TrueRuleFilter(), action=SqlRuleAction("SETT a = 1"))
    rule = rules.get_rule("t/1", "s", "$Default")
    rule.filter = SqlRuleFilter("a = =")
    with pytest.raises(HttpResponseError, match="SubCode=40000"):
        rules.update_rule("t/1", "s", rule)
    with pytest.raises(ResourceExistsError):
        rules.create_rule("t/1", "s", "$default")
    with pytest.raises(ResourceNotFoundError):
        rules.create_rule("t/1", "missing", "r")
    with pytest.raises(ResourceNotFoundError):
        rules.update_rule("t/1", "s", dict(rule.items()) | {"name": "missing", "filter": TrueRuleFilter()})
    assert [rule.name for rule in rules.list_rules("t/1", "s")] == ["$Default"]


def test_rules_longer_than_a_page(rules: ServiceBusAdministrationClient) -> None:
    names = ["$Default", *(f"r{number:03}" for number in range(120))]
    for name in names[1:]:
        rules.create_rule("t/1", "s", name, filter=SqlRuleFilter(f"a = '{name}'", {"@p": name}))
    listed = list(rules.list_rules("t/1", "s"))
    assert [rule.name for rule in listed] == names
    assert isinstance(listed[-1].filter, SqlRuleFilter)
    assert listed[-1].filter.parameters == {"@p": "r119"}


# The rest.


def test_namespace_properties(admin: ServiceBusAdministrationClient) -> None:
    properties = admin.get_namespace_properties()
    assert properties.name == "interop"
    assert properties.messaging_sku == MessagingSku.PREMIUM
    assert properties.messaging_units == 1
    assert properties.namespace_type == NamespaceType.MESSAGING
    assert properties.created_at_utc is not None


@pytest.mark.parametrize("api_version", list(ApiVersion))
def test_api_versions(endpoint: Endpoint, admin: ServiceBusAdministrationClient, api_version: ApiVersion) -> None:
    with endpoint.client(api_version=api_version) as client:
        client.create_topic("flights")
        client.create_subscription("flights", "all")
        topic = client.get_topic("flights")
        assert (topic.max_message_size_in_kilobytes is None) == (api_version == ApiVersion.V2017_04)
        runtime = client.get_topic_runtime_properties("flights")
        assert runtime.subscription_count == 1
        assert (runtime.sql_filter_count is None) == (api_version != ApiVersion.V2024_05)
        client.update_topic(topic)


def test_authentication(endpoint: Endpoint) -> None:
    verify: dict[str, Any] = {"connection_verify": str(endpoint.certificate.authority), "retry_total": 0}
    right = endpoint.connection_string
    key = endpoint.keyring.rules[0].primary_key
    for wrong in (right.replace(key, "A" * 43 + "="), right.replace("RootManage", "OtherManage")):
        with ServiceBusAdministrationClient.from_connection_string(wrong, **verify) as client:
            with pytest.raises(ClientAuthenticationError, match="InvalidSignature"):
                client.get_namespace_properties()
            with pytest.raises(ClientAuthenticationError):
                client.create_queue("q")
            with pytest.raises(ClientAuthenticationError):
                list(client.list_queues())


def test_a_key_without_manage_reads_and_changes_nothing(endpoint: Endpoint) -> None:
    endpoint.keyring.put(StoredRule("worker", new_key(), new_key(), ["Send", "Listen"]))
    connection_string = endpoint.keyring.connection_string(
        f"localhost:{endpoint.port}", key_name="worker", emulator=True
    )
    verify: dict[str, Any] = {"connection_verify": str(endpoint.certificate.authority), "retry_total": 0}
    with ServiceBusAdministrationClient.from_connection_string(connection_string, **verify) as client:
        with pytest.raises(ClientAuthenticationError, match="Manage,EntityRead claims required for this operation"):
            list(client.list_queues())
        with pytest.raises(ClientAuthenticationError, match="Manage,EntityWrite claims required for this operation"):
            client.create_queue("q")
        with pytest.raises(ClientAuthenticationError, match="Manage,EntityDelete claims required for this operation"):
            client.delete_queue("q")


def test_a_client_that_does_not_trust_the_authority_does_not_connect(endpoint: Endpoint) -> None:
    with endpoint.client(connection_verify=True) as client, pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
        client.get_namespace_properties()


async def test_everything_async(async_admin: AsyncClient) -> None:
    admin = async_admin
    queue = await admin.create_queue("orders", lock_duration=timedelta(seconds=30))
    queue.max_delivery_count = 4
    await admin.update_queue(queue)
    assert (await admin.get_queue("orders")).max_delivery_count == 4
    assert (await admin.get_queue_runtime_properties("orders")).total_message_count == 0
    assert [each.name async for each in admin.list_queues()] == ["orders"]
    assert [each.name async for each in admin.list_queues_runtime_properties()] == ["orders"]

    topic = await admin.create_topic("flights")
    topic.user_metadata = "m"
    await admin.update_topic(topic)
    assert (await admin.get_topic("flights")).user_metadata == "m"
    assert (await admin.get_topic_runtime_properties("flights")).subscription_count == 0
    assert [each.name async for each in admin.list_topics()] == ["flights"]
    assert [each.name async for each in admin.list_topics_runtime_properties()] == ["flights"]

    subscription = await admin.create_subscription("flights", "all")
    subscription.max_delivery_count = 5
    await admin.update_subscription("flights", subscription)
    assert (await admin.get_subscription("flights", "all")).max_delivery_count == 5
    assert (await admin.get_subscription_runtime_properties("flights", "all")).total_message_count == 0
    assert [each.name async for each in admin.list_subscriptions("flights")] == ["all"]
    assert [each.name async for each in admin.list_subscriptions_runtime_properties("flights")] == ["all"]

    rule = await admin.create_rule("flights", "all", "r", filter=SqlRuleFilter("a = @p", {"@p": 1}))
    rule.action = SqlRuleAction("SET a = 2")
    await admin.update_rule("flights", "all", rule)
    stored = await admin.get_rule("flights", "all", "r")
    assert isinstance(stored.filter, SqlRuleFilter)
    assert stored.filter.parameters == {"@p": 1}
    assert isinstance(stored.action, SqlRuleAction)
    assert [each.name async for each in admin.list_rules("flights", "all")] == ["$Default", "r"]

    await admin.delete_rule("flights", "all", "r")
    await admin.delete_subscription("flights", "all")
    with pytest.raises(ResourceNotFoundError):
        await admin.get_subscription("flights", "all")
    await admin.delete_topic("flights")
    await admin.delete_queue("orders")
    with pytest.raises(ResourceNotFoundError):
        await admin.get_queue("orders")
    assert (await admin.get_namespace_properties()).name == "interop"


# Every setting, changed one by one.

HOURS = timedelta(hours=3)
RULE = AuthorizationRule(
    type="SharedAccessAuthorizationRule", claim_type="SharedAccessKey", claim_value="None", key_name="added",
    rights=[AccessRights.SEND], primary_key="p" * 44, secondary_key="s" * 44, created_at_utc=None, modified_at_utc=None,
)  # fmt: skip
SHARED = {
    "auto_delete_on_idle": HOURS,
    "default_message_time_to_live": HOURS,
    "enable_batched_operations": False,
    "status": EntityStatus.DISABLED,
    "user_metadata": "changed",
}
RECEIVING = {
    "lock_duration": timedelta(seconds=17),
    "dead_lettering_on_message_expiration": True,
    "max_delivery_count": 17,
}
SIZED = {
    "duplicate_detection_history_time_window": timedelta(minutes=17),
    "max_size_in_megabytes": 5120,
    "max_message_size_in_kilobytes": 4096,
}
UPDATES = [
    *(("queue", name, value) for name, value in {**SHARED, **RECEIVING, **SIZED}.items()),
    *(("topic", name, value) for name, value in {**SHARED, **SIZED, "support_ordering": False}.items()),
    *(("subscription", name, value) for name, value in {**SHARED, **RECEIVING}.items()),
    ("subscription", "dead_lettering_on_filter_evaluation_exceptions", False),
]
REFUSALS = [
    ("queue", "requires_session", True), ("queue", "requires_duplicate_detection", True),
    ("queue", "enable_partitioning", True), ("queue", "max_delivery_count", 0),
    ("queue", "lock_duration", timedelta(seconds=4)), ("queue", "lock_duration", timedelta(minutes=5, seconds=1)),
    ("queue", "auto_delete_on_idle", timedelta(minutes=4)), ("queue", "max_size_in_megabytes", 0),
    ("queue", "max_message_size_in_kilobytes", 102_401), ("queue", "user_metadata", "x" * 1025),
    ("queue", "duplicate_detection_history_time_window", timedelta(days=8)),
    ("queue", "default_message_time_to_live", timedelta(0)),
    ("topic", "requires_duplicate_detection", True), ("topic", "enable_partitioning", True),
    ("topic", "max_size_in_megabytes", 81_921), ("topic", "status", EntityStatus.RECEIVE_DISABLED),
    ("subscription", "requires_session", True), ("subscription", "max_delivery_count", 0),
    ("subscription", "lock_duration", timedelta(minutes=6)), ("subscription", "status", EntityStatus.SEND_DISABLED),
]  # fmt: skip


class Kind:
    """One kind of entity, made, read and changed by the client."""

    def __init__(self, admin: ServiceBusAdministrationClient, kind: str) -> None:
        parent: tuple[str, ...] = ()
        if kind == "subscription":
            admin.create_topic("parent")
            parent = ("parent",)
        self.made = getattr(admin, f"create_{kind}")(*parent, "changing")
        self._get = functools.partial(getattr(admin, f"get_{kind}"), *parent, "changing")
        self._update = functools.partial(getattr(admin, f"update_{kind}"), *parent)

    def read(self) -> dict[str, Any]:
        return dict(self._get().items())

    def change(self, name: str, value: Any) -> None:
        changed = self._get()
        setattr(changed, name, value)
        self._update(changed)


@pytest.mark.parametrize(("kind", "name", "value"), UPDATES, ids=lambda value: value if isinstance(value, str) else "")
def test_every_setting_that_can_change(
    admin: ServiceBusAdministrationClient, kind: str, name: str, value: object
) -> None:
    entity = Kind(admin, kind)
    before = entity.read()
    assert before[name] != value
    entity.change(name, value)
    # Nothing else has changed with it.
    assert entity.read() == {**before, name: value}


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_authorization_rules_change(admin: ServiceBusAdministrationClient, kind: str) -> None:
    entity = Kind(admin, kind)
    entity.change("authorization_rules", [RULE])
    [rule] = entity.read()["authorization_rules"]
    assert (rule.key_name, rule.primary_key, rule.rights) == ("added", "p" * 44, [AccessRights.SEND])
    entity.change("authorization_rules", [])
    assert not entity.read()["authorization_rules"]


@pytest.mark.parametrize(("kind", "name", "value"), REFUSALS, ids=lambda value: str(value)[:40])
def test_every_change_that_is_refused(
    admin: ServiceBusAdministrationClient, kind: str, name: str, value: object
) -> None:
    entity = Kind(admin, kind)
    before = entity.read()
    with pytest.raises(HttpResponseError, match="SubCode=40000") as error:
        entity.change(name, value)
    assert code(error) == 400
    assert entity.read() == before
