"""The Service Bus administration without a namespace; with one it is tested in tests/interop/operator/test_apply.py."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.core.paging import ItemPaged
from azure.servicebus.management import CorrelationRuleFilter, EntityStatus, SqlRuleFilter

from harness.fixture.paged_list import paged
from isthmus.connectors.administration import AdministrationError, EntityChangedError
from isthmus.connectors.servicebus.administration.administration import (
    CA_FILE_VARIABLE,
    ServiceBusAdministration,
    ca_file,
)
from isthmus.connectors.servicebus.administration.client import OpenClient, client_of_string
from isthmus.connectors.servicebus.administration.transport import AdministrationTransport
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.connectors.servicebus.entity import Entities, EntityPath
from isthmus.connectors.servicebus.plain_host import ALLOWED_VARIABLE
from isthmus.topology import Change, NamespaceRef, NamespaceState, QueueState, RuleState, SubscriptionState, TopicState
from isthmus.topology.file.duration import INFINITE_MS
from isthmus.topology.file.reference import SecretReference

WANTED = TopicState(name="x", subscriptions=(SubscriptionState(name="S", rules=(RuleState("r", "1=1"),)),))


class Client:
    """Answers as the administration client does; every other call is noted."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.subscription = SimpleNamespace(
            name="s",
            lock_duration=timedelta(seconds=30),
            max_delivery_count=10,
            auto_delete_on_idle=timedelta.max,
            default_message_time_to_live=timedelta(days=1),
            requires_session=False,
            forward_to="sb://host:5671/some/queue",
            forward_dead_lettered_messages_to=None,
            dead_lettering_on_message_expiration=True,
            status=EntityStatus.ACTIVE,
            user_metadata="theirs",
        )

    def get_namespace_properties(self) -> SimpleNamespace:
        if self.error:
            raise self.error
        return SimpleNamespace(name="host", created_at_utc=None)

    def get_topic(self, name: str) -> SimpleNamespace:
        if name != "x":
            raise ResourceNotFoundError("no")
        return SimpleNamespace(
            requires_duplicate_detection=False,
            duplicate_detection_history_time_window=timedelta(minutes=10),
            enable_partitioning=True,
        )

    def get_queue(self, name: str) -> SimpleNamespace:
        if name != "q":
            raise ResourceNotFoundError("no")
        return SimpleNamespace(
            name="q",
            **{key: value for key, value in vars(self.subscription).items() if key != "name"},
            requires_duplicate_detection=True,
            duplicate_detection_history_time_window=timedelta(minutes=10),
            enable_partitioning=False,
        )

    def list_subscriptions(self, topic: str) -> ItemPaged[Any]:
        return paged([self.subscription])

    def get_subscription(self, topic: str, name: str) -> SimpleNamespace:
        return self.subscription

    def list_rules(self, topic: str, subscription: str) -> ItemPaged[Any]:
        return paged(
            [
                SimpleNamespace(name="a", filter=SqlRuleFilter("x = 1"), action=None),
                SimpleNamespace(name="b", filter=CorrelationRuleFilter(label="EWR"), action=None),
            ]
        )

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: self.calls.append((name, arguments, options))


def administration(client: Client) -> ServiceBusAdministration:
    return ServiceBusAdministration(OpenClient(client, AdministrationTransport(), "host.test"))  # type: ignore[arg-type]


def test_what_exists_is_observed() -> None:
    topics = [WANTED, TopicState(name="q"), TopicState(name="none")]
    state = administration(Client()).observe("ewr", topics)
    assert state.endpoint == "host.test"
    (queue,) = state.queues
    assert (queue.name, queue.duplicate_detection_ms, queue.partitioned) == ("q", 600_000, False)
    assert (queue.forward_to, queue.dead_letters_expired) == ("some/queue", True)
    (topic,) = state.topics
    assert (topic.duplicate_detection_ms, topic.partitioned) == (0, True)
    (subscription,) = topic.subscriptions
    assert subscription == SubscriptionState(
        name="s",
        rules=(RuleState("a", "x = 1"), RuleState("b", "correlation {'label': 'EWR'}")),
        lock_duration_ms=30_000,
        max_delivery_count=10,
        auto_delete_on_idle_ms=INFINITE_MS,
        requires_session=False,
        forward_to="some/queue",
        default_ttl_ms=86_400_000,
        forward_dead_letters_to="",
        dead_letters_expired=True,
        status="Active",
    )


def test_two_namespaces_of_one_name_and_millisecond_are_two() -> None:
    def observed(instance: str) -> NamespaceState:
        transport = AdministrationTransport()
        client = Client()

        def answer() -> SimpleNamespace:
            transport.namespace.instance = instance
            return SimpleNamespace(name="host", created_at_utc=None)

        client.get_namespace_properties = answer  # type: ignore[method-assign]
        opened = OpenClient(client, transport, f"{instance or 'azure'}.test")  # type: ignore[arg-type]
        return ServiceBusAdministration(opened).observe("ewr", [])

    assert not observed("a").is_same_namespace(observed("b"))
    assert observed("").identity == "host None"
    again = observed("a")
    assert observed("a").is_same_namespace(replace(again, endpoint="another.test"))


@pytest.mark.parametrize(
    ("wanted", "is_read"),
    [
        # Planning looks at what a subscription that the file names without a filter leaves out.
        (SubscriptionState(name="S"), True),
        (SubscriptionState(name="other"), False),
        # A canary must reach no subscription, whether the file names it or not.
        (SubscriptionState(name="other", rules=(RuleState("isthmus-no-canary", "[isthmus-canary] IS NULL"),)), True),
    ],
)
def test_rules_are_read_where_planning_looks_at_them(wanted: SubscriptionState, is_read: bool) -> None:
    (topic,) = administration(Client()).observe("ewr", [TopicState(name="x", subscriptions=(wanted,))]).topics
    (subscription,) = topic.subscriptions
    assert [rule.name for rule in subscription.rules or ()] == ["a", "b"] * is_read


def test_i1_an_update_sends_back_what_it_read_but_for_the_change() -> None:
    client = Client()
    after = SubscriptionState(name="s", max_delivery_count=2000, forward_to="", auto_delete_on_idle_ms=INFINITE_MS)
    administration(client).make(
        Change(alias="ewr", action="update", kind="subscription", topic="x", subscription="s", after=after)
    )
    ((name, (topic, sent), _),) = client.calls
    assert (name, topic) == ("update_subscription", "x")
    assert (sent.max_delivery_count, sent.forward_to, sent.user_metadata) == (2000, None, "theirs")
    assert sent.lock_duration == timedelta(seconds=30)
    assert sent.auto_delete_on_idle == "P10675199DT2H48M5.4775807S"


def test_i1_an_update_of_a_queue_sends_back_what_it_read_but_for_the_change() -> None:
    client = Client()
    after = QueueState(name="q", dead_letters_expired=False, forward_dead_letters_to="parked", status="ReceiveDisabled")
    administration(client).make(Change(alias="ewr", action="update", kind="queue", topic="q", after=after))
    ((name, (sent,), _),) = client.calls
    assert name == "update_queue"
    assert (sent.dead_lettering_on_message_expiration, sent.forward_dead_lettered_messages_to) == (False, "parked")
    assert (sent.status, sent.user_metadata, sent.max_delivery_count) == ("ReceiveDisabled", "theirs", 10)
    assert sent.forward_to == "sb://host:5671/some/queue"


def update(before: QueueState | SubscriptionState, **settings: Any) -> Change:
    after = replace(type(before)(name=before.name), **settings)
    if isinstance(before, QueueState):
        return Change(alias="ewr", action="update", kind="queue", topic="q", after=after, before=before)
    return Change(
        alias="ewr", action="update", kind="subscription", topic="x", subscription="s", after=after, before=before
    )


def test_i3_what_somebody_else_has_set_since_the_plan_is_not_set_back() -> None:
    client = Client()
    ewr = administration(client)
    state = ewr.observe("ewr", [WANTED, QueueState(name="q")])
    queue, (subscription,) = state.queues[0], state.topics[0].subscriptions
    client.subscription.max_delivery_count = 5  # another operator, of what this plan also sets
    for before in (queue, subscription):
        change = update(before, max_delivery_count=10, lock_duration_ms=60_000)
        with pytest.raises(
            EntityChangedError, match="was changed since the plan was made \\(MaxDeliveryCount 10 → 5\\)"
        ) as reported:
            ewr.make(change)
        assert reported.value.retryable
    assert client.calls == []


def test_i3_what_somebody_else_has_set_as_this_plan_does_and_what_it_leaves_alone_are_no_conflict() -> None:
    client = Client()
    ewr = administration(client)
    (queue,) = ewr.observe("ewr", [QueueState(name="q")]).queues
    client.subscription.max_delivery_count = 5
    client.subscription.default_message_time_to_live = timedelta(hours=1)
    ewr.make(update(queue, max_delivery_count=5))
    ((name, (sent,), _),) = client.calls
    assert (name, sent.max_delivery_count, sent.default_message_time_to_live) == ("update_queue", 5, timedelta(hours=1))


def test_i3_a_rule_that_somebody_else_has_changed_is_left() -> None:
    client = Client()
    client.get_rule = lambda *_: SimpleNamespace(name="r", filter=SqlRuleFilter("x = 3"), action=None)  # type: ignore[attr-defined]
    before, after = RuleState("r", "x = 1"), RuleState("r", "x = 2")

    def change(before: RuleState) -> Change:
        names = {"alias": "ewr", "topic": "x", "subscription": "s"}
        return Change(action="update", kind="rule", before=before, after=after, **names)  # type: ignore[arg-type]

    with pytest.raises(EntityChangedError, match="filter x = 3"):
        administration(client).make(change(before))
    assert client.calls == []
    administration(client).make(change(RuleState("r", "x  =  3")))
    assert [name for name, _, _ in client.calls] == ["update_rule"]


def test_a_queue_is_created_with_what_is_asked_for_and_then_suspended() -> None:
    client = Client()
    after = QueueState(name="q", requires_session=True, initial_ttl_ms=60_000, status="ReceiveDisabled")
    administration(client).make(Change(alias="ewr", action="create", kind="queue", topic="q", after=after))
    (created, (name,), options), (updated, (sent,), _) = client.calls
    assert (created, name, updated) == ("create_queue", "q", "update_queue")
    assert (options["requires_session"], options["default_message_time_to_live"]) == (True, timedelta(minutes=1))
    assert sent.status == "ReceiveDisabled"


class Counting(Client):
    """A topic with messages in a subscription, and some that it delivers later."""

    def get_topic_runtime_properties(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(scheduled_message_count=3)

    def list_subscriptions_runtime_properties(self, name: str) -> ItemPaged[Any]:
        return paged(
            [
                SimpleNamespace(name="a", total_message_count=2),
                SimpleNamespace(name="b", total_message_count=None),
            ]
        )


def test_what_a_topic_has_scheduled_would_be_deleted_with_it() -> None:
    client = Counting()
    asked = Change(alias="ewr", action="delete", kind="topic", topic="x")
    assert administration(client).waiting(asked) == 5
    opened = OpenClient(client, AdministrationTransport(), "host.test")  # type: ignore[arg-type]
    assert Entities(opened).waiting(EntityPath("x")) == 5


def test_further_rules_follow_the_one_that_a_subscription_is_made_with() -> None:
    client = Client()
    after = SubscriptionState(name="s", rules=(RuleState("one", "1=1"), RuleState("two", "a = 1", "SET b = 1")))
    administration(client).make(
        Change(alias="ewr", action="create", kind="subscription", topic="x", subscription="s", after=after)
    )
    assert [(name, arguments) for name, arguments, _ in client.calls] == [
        ("create_subscription", ("x", "s")),
        ("create_rule", ("x", "s", "two")),
    ]


def refused(text: str) -> ClientAuthenticationError:
    """As the client raises it where the namespace has answered; an identity without a token has no status."""
    error = ClientAuthenticationError(text)
    error.status_code = 401
    return error


def answered(status: int) -> HttpResponseError:
    error = HttpResponseError("busy")
    error.status_code = status
    return error


@pytest.mark.parametrize(
    ("error", "message", "retryable"),
    [
        (refused("SharedAccessKey=hunter2"), "refused the key or identity", False),
        (ClientAuthenticationError("SharedAccessKey=hunter2"), "was not called: no token for the identity", True),
        (ServiceRequestError("[SSL: CERTIFICATE_VERIFY_FAILED]"), "not trusted here", False),
        (ServiceRequestError("no route"), "cannot be reached", True),
        (ServiceResponseError("reset"), "gave no answer", True),
        (HttpResponseError("SubCode=40300"), "refused with None", False),
        (answered(503), "refused with 503", True),
        (answered(429), "refused with 429", True),
        (answered(400), "refused with 400", False),
        (ValueError("Failed to parse: 'aaaa', label empty or too long"), "cannot be reached", False),
    ],
)
def test_i2_errors_say_what_to_do_and_hold_no_key(error: Exception, message: str, retryable: bool) -> None:
    with pytest.raises(AdministrationError, match=message) as raised:
        administration(Client(error)).observe("ewr", [WANTED])
    assert "hunter2" not in str(raised.value)
    assert raised.value.retryable == retryable


@pytest.mark.parametrize(
    "text",
    [
        "HostName=h;SharedAccessKeyName=a;SharedAccessKey=b=",
        "Endpoint=h:5672;SharedAccessKeyName=a;SharedAccessKey=b=;UseDevelopmentEmulator=true",
        " Endpoint = sb://h/ ; SharedAccessKeyName = a ; SharedAccessKey = b= ;",
        "Endpoint=sb://h/;SharedAccessSignature=SharedAccessSignature sr=x&sig=y%3d&se=1&skn=z",
    ],
)
def test_every_connection_string_that_opens_the_data_opens_the_administration(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACE", text)
    namespace = NamespaceRef("ewr", SecretReference.parse("env:PLACE"))
    ServiceBusAdministration.open(namespace).close()


def test_the_authoritys_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "ca.pem"
    file.touch()
    assert ca_file(NamespaceRef("ewr")) == ""
    monkeypatch.setenv(CA_FILE_VARIABLE, str(file))
    assert ca_file(NamespaceRef("ewr")) == str(file)
    with pytest.raises(AdministrationError, match="no such file; write ca_file"):
        ca_file(NamespaceRef("ewr", ca_file="/nowhere"))
    monkeypatch.setenv(CA_FILE_VARIABLE, "/nowhere")
    with pytest.raises(AdministrationError, match=f"no such file; write {CA_FILE_VARIABLE}"):
        ca_file(NamespaceRef("ewr"))


STRING = "Endpoint=sb://{host}:5710;SharedAccessKeyName=k;SharedAccessKey=bm90LWEta2V5LWJ1dC1sb25n{flag}"


@pytest.mark.parametrize(
    ("flag", "authority", "plain"),
    [(";UseDevelopmentEmulator=true", "", True), (";UseDevelopmentEmulator=true", "ca.pem", False), ("", "", False)],
)
def test_a_development_namespace_is_asked_over_http_unless_an_authority_is_named(
    flag: str, authority: str, plain: bool
) -> None:
    opened = client_of_string(ConnectionString.parse(STRING.format(host="127.0.0.1", flag=flag)), authority)
    opened.client.close()
    assert opened.transport.is_plain == plain


@pytest.mark.parametrize(
    ("host", "flag", "authority"),
    [
        ("localhost", ";UseDevelopmentEmulator=true", "localhost:5300"),
        ("127.0.0.1:5710", ";UseDevelopmentEmulator=true", "127.0.0.1:5710"),
        ("[::1]", ";UseDevelopmentEmulator=true", "[::1]:5300"),
        ("localhost", "", "localhost"),
    ],
)
def test_the_emulators_own_string_leads_to_the_port_of_its_administration(host: str, flag: str, authority: str) -> None:
    """It names no port, and the administration would be sought at that of HTTP, 80."""
    opened = client_of_string(ConnectionString.parse(STRING.replace(":5710", "").format(host=host, flag=flag)))
    opened.client.close()
    assert opened.endpoint == authority
    assert opened.client.fully_qualified_namespace.endswith(authority)


def test_i2_another_machine_is_asked_over_https_unless_the_operator_allows_http(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed = ConnectionString.parse(STRING.format(host="ewr.example", flag=";UseDevelopmentEmulator=true"))
    found = []
    for allowed in ("", "jfk.example, EWR.example"):
        monkeypatch.setenv(ALLOWED_VARIABLE, allowed)
        opened = client_of_string(parsed)
        opened.client.close()
        found.append(opened.transport.is_plain)
    assert found == [False, True]


class Vanishing(Client):
    """Two topics, the first of which is deleted once it was listed."""

    def list_queues(self) -> ItemPaged[Any]:
        return paged([])

    def list_queues_runtime_properties(self) -> ItemPaged[Any]:
        return paged([])

    def list_topics(self) -> ItemPaged[Any]:
        settings = vars(self.get_topic("x"))
        return paged([SimpleNamespace(name=name, status="Active", **settings) for name in ("gone", "stays")])

    list_topics_runtime_properties = list_topics

    def list_subscriptions(self, topic: str) -> ItemPaged[Any]:
        if topic == "gone":
            raise ResourceNotFoundError("no")
        return super().list_subscriptions(topic)

    list_subscriptions_runtime_properties = list_subscriptions


def test_a_topic_that_is_deleted_while_a_namespace_is_listed_hides_no_other() -> None:
    client = Vanishing()
    name = client.subscription.name
    found = administration(client).inventory("ewr")
    assert [(topic.name, len(topic.subscriptions)) for topic in found.topics] == [("gone", 0), ("stays", 1)]
    opened = OpenClient(client, AdministrationTransport(), "host.test")  # type: ignore[arg-type]
    assert Entities(opened).paths() == ["gone", "stays", f"stays/Subscriptions/{name}"]
    assert [row.path for row in Entities(opened).rows()] == ["gone", "stays", f"stays/Subscriptions/{name}"]
