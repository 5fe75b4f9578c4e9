"""Event hubs and consumer groups over the administration API, without HTTP."""

from __future__ import annotations

import pytest

from isthmus.broker.admin.address import Address, Resource
from isthmus.broker.admin.atom import ATOM, SERVICE_BUS
from isthmus.broker.admin.document import read
from isthmus.broker.admin.failure import PreconditionError, failure
from isthmus.broker.admin.operation import Operations
from isthmus.broker.admin.request import Request
from isthmus.entities import Engine
from isthmus.entities.hub import EventHubDescription
from isthmus.errors import (
    EntityExistsError,
    EntityNotFoundError,
    InvalidArgumentError,
    IsthmusError,
    NotAllowedError,
    QuotaExceededError,
)
from isthmus.store import MemoryJournal
from isthmus.testing.clock import ManualClock

DAY_MS = 86_400_000
RULE = (
    "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Send</AccessRights></Rights>"
    "<KeyName>device</KeyName><PrimaryKey>p</PrimaryKey></AuthorizationRule></AuthorizationRules>"
)
METADATA = "<UserMetadata>%s</UserMetadata>"


class Api:
    def __init__(self):
        self.clock = ManualClock()
        self.store = MemoryJournal()
        self.engine = Engine(self.store, self.clock)
        self.operations = Operations(self.engine, self.clock, "ewr", 1 << 20)

    def request(self, path, body="", **more):
        return Request(Address.parse(path), "https://h", "2014-01", body.encode(), **more)

    def put(self, path, inside="", kind="EventHubDescription", if_match=None):
        body = f'<entry xmlns="{ATOM}"><content><{kind} xmlns="{SERVICE_BUS}">{inside}</{kind}></content></entry>'
        return self.operations.put(self.request(path, body, if_match=if_match))

    def get(self, path, **more):
        return read(self.operations.get(self.request(path, **more)).body.encode())

    def shown(self, path):
        [description] = self.get(path).find("content").children
        return {child.name: child.text or [each.text for each in child.children] for child in description.children}

    def titles(self, path, **more):
        return [entry.find_text("title") for entry in self.get(path, **more).find_all("entry")]


@pytest.fixture
def api():
    return Api()


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/$Resources/EventHubs", Address(Resource.EVENT_HUBS)),
        ("/hub/consumergroups", Address(Resource.CONSUMER_GROUPS, "hub")),
        ("/hub/ConsumerGroups/$Default", Address(Resource.CONSUMER_GROUP, "hub", group="$Default")),
        ("/a/b/consumergroups", Address(Resource.ENTITY, "a/b/consumergroups")),
        ("/a%2Fconsumergroups%2Fb", Address(Resource.ENTITY, "a/consumergroups/b")),
    ],
)
def test_addresses(path, wanted):
    assert Address.parse(path) == wanted
    assert Address.parse("/" + wanted.path) == wanted or "/" in wanted.entity


def test_a_hub_is_made_with_what_is_asked_and_shown(api):
    inside = "<MessageRetentionInDays>3</MessageRetentionInDays>" + RULE
    inside += "<Status>SendDisabled</Status><UserMetadata>m</UserMetadata><PartitionCount>2</PartitionCount>"
    answer = api.put("/Telemetry", inside)
    assert answer.status == 201
    made = api.engine.hubs.get("telemetry")
    assert (made.message_retention_ms, made.status, made.user_metadata) == (3 * DAY_MS, "SendDisabled", "m")
    shown = api.shown("/telemetry")
    assert shown | {"MessageRetentionInDays": "3", "PartitionCount": "2", "PartitionIds": ["0", "1"]} == shown
    assert shown["EntityAvailabilityStatus"] == "Available"
    [rule] = made.authorization_rules
    assert (rule.key_name, rule.primary_key, rule.rights) == ("device", "p", ["Send"])
    assert rule.secondary_key
    entry = read(answer.body.encode())
    assert (entry.find_text("title"), entry.find_text("id")) == ("Telemetry", "https://h/Telemetry")


def test_defaults(api):
    api.put("/hub")
    assert api.engine.hubs.get("hub") == EventHubDescription()
    shown = api.shown("/hub")
    assert (shown["MessageRetentionInDays"], shown["PartitionCount"]) == ("7", "4")


def test_an_update_replaces_and_keeps_what_only_this_namespace_knows_i1(api):
    settings = EventHubDescription(
        partition_count=2, message_retention_ms=DAY_MS // 2, partition_retention_in_megabytes=5,
        max_message_size_in_kilobytes=64, consumer_groups=["g"], user_metadata="m",
    )  # fmt: skip
    api.engine.hubs.create("hub", settings)
    days = "<MessageRetentionInDays>1</MessageRetentionInDays>"
    assert api.put("/hub", days + "<PartitionCount>3</PartitionCount>", if_match="*").status == 200
    found = api.engine.hubs.get("hub")
    assert (found.partition_count, found.message_retention_ms, found.user_metadata) == (3, DAY_MS // 2, None)
    assert (found.partition_retention_in_megabytes, found.max_message_size_in_kilobytes) == (5, 64)
    assert found.consumer_groups == ["g"]
    api.put("/hub", "<MessageRetentionInDays>2</MessageRetentionInDays>", if_match="*")
    found = api.engine.hubs.get("hub")
    assert (found.partition_count, found.message_retention_ms) == (3, 2 * DAY_MS)


@pytest.mark.parametrize(
    ("path", "kind", "inside", "if_match", "error", "status"),
    [
        ("/hub", "EventHubDescription", "", None, EntityExistsError, 409),
        ("/queue", "EventHubDescription", "", None, EntityExistsError, 409),
        ("/hub", "QueueDescription", "", None, EntityExistsError, 409),
        ("/hub", "TopicDescription", "", None, EntityExistsError, 409),
        ("/queue", "EventHubDescription", "", "*", EntityNotFoundError, 404),
        ("/other", "EventHubDescription", "", "*", EntityNotFoundError, 404),
        ("/hub", "EventHubDescription", "", "1", PreconditionError, 412),
        ("/hub", "EventHubDescription", "<PartitionCount>1</PartitionCount>", "*", InvalidArgumentError, 400),
        ("/a", "EventHubDescription", "<PartitionCount>101</PartitionCount>", None, InvalidArgumentError, 400),
        ("/a", "EventHubDescription", "<PartitionCount>x</PartitionCount>", None, InvalidArgumentError, 400),
        ("/a", "EventHubDescription", "<Status>Odd</Status>", None, InvalidArgumentError, 400),
        ("/a/b", "EventHubDescription", "", None, InvalidArgumentError, 400),
        ("/a", "ConsumerGroupDescription", "", None, InvalidArgumentError, 400),
        ("/hub/consumergroups/g", "EventHubDescription", "", None, InvalidArgumentError, 400),
        ("/hub/consumergroups/G", "ConsumerGroupDescription", "", None, EntityExistsError, 409),
        ("/hub/consumergroups/$default", "ConsumerGroupDescription", "", None, EntityExistsError, 409),
        ("/hub/consumergroups/h", "ConsumerGroupDescription", "", "*", EntityNotFoundError, 404),
        ("/queue/consumergroups/h", "ConsumerGroupDescription", "", None, EntityNotFoundError, 404),
        ("/hub/consumergroups/h", "ConsumerGroupDescription", METADATA % ("m" * 1025), None, InvalidArgumentError, 400),
        ("/hub/consumergroups/g", "ConsumerGroupDescription", METADATA % ("m" * 1025), "*", InvalidArgumentError, 400),
        ("/a", "EventHubDescription", METADATA % ("m" * 1025), None, InvalidArgumentError, 400),
        ("/hub/consumergroups/" + "h" * 51, "ConsumerGroupDescription", "", None, InvalidArgumentError, 400),
    ],
)  # fmt: skip
def test_refusals_change_nothing_i2(api, path, kind, inside, if_match, error, status):
    api.engine.create_queue("queue")
    api.engine.hubs.create("hub", EventHubDescription(partition_count=2, consumer_groups=["g"]))
    before = api.engine.hubs.row("hub").pack()
    with pytest.raises(error) as caught:
        api.put(path, inside, kind, if_match)
    assert failure(caught.value, namespace="ewr", path=path, now_ms=0)[0] == status
    assert api.engine.hubs.row("hub").pack() == before
    assert api.engine.hubs.names() == ["hub"]
    assert [name for name, _ in api.engine.list_queues()] == ["queue"]


def test_lists_in_pages_and_by_filter(api):
    for name in ("c", "A", "b"):
        api.engine.hubs.create(name)
    assert api.titles("/$Resources/eventhubs") == ["A", "b", "c"]
    assert api.titles("/$Resources/eventhubs", skip=1, top=1) == ["b"]
    assert api.titles("/$Resources/eventhubs", filter="path eq 'a'") == ["A"]
    assert api.titles("/$Resources/queues") == []


def test_consumer_groups(api):
    api.put("/hub")
    assert api.put("/hub/consumergroups/Audit", kind="ConsumerGroupDescription").status == 201
    assert api.put("/hub/consumergroups/audit", kind="ConsumerGroupDescription", if_match="*").status == 200
    assert api.titles("/HUB/consumergroups") == ["$Default", "Audit"]
    entry = api.get("/hub/ConsumerGroups/audit")
    assert entry.find_text("title") == "Audit"
    assert entry.find_text("id") == "https://h/hub/ConsumerGroups/Audit"
    assert api.operations.delete(api.request("/hub/consumergroups/AUDIT")).status == 200
    assert api.engine.hubs.get("hub").consumer_groups == []
    assert api.get("/hub/consumergroups/audit").find_text("title") == "Publicly Listed Services"
    with pytest.raises(EntityNotFoundError):
        api.operations.delete(api.request("/hub/consumergroups/audit"))
    with pytest.raises(NotAllowedError):
        api.operations.delete(api.request("/hub/consumergroups/$Default"))


def test_user_metadata_of_consumer_groups(api):
    api.put("/hub")
    kind = "ConsumerGroupDescription"
    api.put("/hub/consumergroups/Audit", METADATA % "mine &amp; yours", kind)
    api.put("/hub/consumergroups/other", "", kind)
    api.put("/hub/consumergroups/$Default", METADATA % "all", kind, if_match="*")
    api.put("/hub", METADATA % "of the hub", if_match="*")
    api.engine.begin_commit()
    api.store.sync()
    api.engine = Engine(api.store, api.clock)
    api.operations = Operations(api.engine, api.clock, "ewr", 1 << 20)
    assert api.shown("/hub/consumergroups/audit")["UserMetadata"] == "mine & yours"
    assert api.shown("/hub/consumergroups/$default")["UserMetadata"] == "all"
    assert "UserMetadata" not in api.shown("/hub/consumergroups/other")
    shown = [entry.find("content").children[0] for entry in api.get("/hub/consumergroups").find_all("entry")]
    assert [each.find_text("UserMetadata") for each in shown] == ["all", "mine & yours", None]
    api.put("/hub/consumergroups/other", METADATA % "new", kind, if_match="*")
    api.put("/hub/consumergroups/audit", "", kind, if_match="*")
    assert "UserMetadata" not in api.shown("/hub/consumergroups/Audit")
    api.operations.delete(api.request("/hub/consumergroups/other"))
    api.put("/hub/consumergroups/other", "", kind)
    assert api.engine.hubs.get("hub").consumer_group_metadata == {"$default": "all"}


def test_one_group_too_many_is_a_quota(api):
    api.engine.hubs.create("hub", EventHubDescription(consumer_groups=[f"g{number}" for number in range(99)]))
    with pytest.raises(QuotaExceededError) as caught:
        api.put("/hub/consumergroups/more", kind="ConsumerGroupDescription")
    assert failure(caught.value, namespace="ewr", path="hub", now_ms=0)[0] == 403


def test_deletion(api):
    api.put("/hub")
    stale = api.engine.hubs.row("hub").updated_at_ms - 1
    with pytest.raises(PreconditionError):
        api.operations.delete(api.request("/hub", if_match=str(stale)))
    assert api.operations.delete(api.request("/Hub")).status == 200
    assert "hub" not in api.engine.hubs
    assert api.get("/hub").find_text("title") == "Publicly Listed Services"
    with pytest.raises(IsthmusError):
        api.operations.delete(api.request("/hub"))
