from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.broker.config.namespace_file import read_config
from isthmus.broker.config.provision import provision
from isthmus.entities import Engine
from isthmus.entities.catalog.description import AuthorizationRule, QueueDescription, SqlFilter, TrueFilter
from isthmus.entities.catalog.limit import Limits
from isthmus.errors import ConfigError
from isthmus.store import MemoryJournal
from isthmus.testing.clock import ManualClock

FILE = """
queues:
  orders: {max_delivery_count: 5}
topics:
  flights:
    default_message_time_to_live: 1h
    subscriptions:
      all: {lock_duration: 5s}
      heavy: {rules: {heavy: {filter: "weight > 10"}, large: {filter: "size > 10", action: "SET large = true"}}}
"""


@pytest.fixture
def engine() -> Engine:
    return Engine(MemoryJournal(), ManualClock())


def rules(engine: Engine, subscription: str) -> dict[str, object]:
    return {rule.name: rule.filter for rule in engine.list_rules("flights", subscription)}


def test_makes_what_the_file_names(engine: Engine) -> None:
    changed = provision(engine, read_config(FILE, "file"))
    assert changed == ["flights", "orders", "flights/Subscriptions/all", "flights/Subscriptions/heavy"]
    assert [name for name, _ in engine.list_queues()] == ["orders"]
    assert rules(engine, "all") == {"$Default": TrueFilter()}
    assert rules(engine, "heavy") == {"heavy": SqlFilter("weight > 10"), "large": SqlFilter("size > 10")}


def test_i1_a_second_run_changes_nothing(engine: Engine) -> None:
    config = read_config(FILE, "file")
    provision(engine, config)
    before = engine.list_queues(), engine.list_topics(), engine.list_rules("flights", "heavy")
    assert provision(engine, config) == []
    assert (engine.list_queues(), engine.list_topics(), engine.list_rules("flights", "heavy")) == before


def keys_of(engine: Engine, name: str) -> dict[str, tuple[str, str, list[str]]]:
    described = engine.get_queue(name) or engine.get_topic(name)
    assert described is not None
    return {
        rule.key_name: (rule.primary_key, rule.secondary_key, rule.rights) for rule in described.authorization_rules
    }


@pytest.mark.parametrize("kind", ["queues", "topics"])
def test_authorization_rules_become_those_of_the_file(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("FIRST", "given")
    first = f"{kind}: {{e: {{authorization_rules: {{a: {{rights: [Send], primary_key: env:FIRST}}, b: {{rights: [Listen]}}}}}}}}"
    assert provision(engine, read_config(first, "file")) == ["e"]
    made = keys_of(engine, "e")
    assert made["a"][0] == "given"
    assert len({*made["a"][:2], *made["b"][:2]}) == 4
    assert all(made["a"][:2] + made["b"][:2])
    # I1: keys that were made stay.
    assert provision(engine, read_config(first, "file")) == []
    assert keys_of(engine, "e") == made
    # Without the section the rules stay, with another one they are its.
    assert provision(engine, read_config(f"{kind}: {{e: {{}}}}", "file")) == []
    assert keys_of(engine, "e") == made
    second = f"{kind}: {{e: {{authorization_rules: {{b: {{rights: [Send, Listen]}}}}}}}}"
    assert provision(engine, read_config(second, "file")) == ["e"]
    assert keys_of(engine, "e") == {"b": (*made["b"][:2], ["Send", "Listen"])}


def test_rules_that_the_service_refuses_stage_nothing_i2(engine: Engine) -> None:
    many = ", ".join(f"r{number}: {{rights: [Send]}}" for number in range(13))
    with pytest.raises(ConfigError, match="the limit is 12"):
        provision(engine, read_config(f"queues: {{a: {{}}, e: {{authorization_rules: {{{many}}}}}}}", "file"))
    assert engine.list_queues() == []


def test_what_exceeds_a_lowered_limit_stays_until_it_is_changed() -> None:
    engine = Engine(MemoryJournal(), ManualClock(), limits=Limits(min_lock_duration_ms=1))
    engine.create_queue("old", QueueDescription(lock_duration_ms=50))
    config = read_config("queues: {fresh: {}, old: {lock_duration: 6s}}", "file")
    assert provision(engine, config, limits=Limits()) == ["fresh", "old"]
    with pytest.raises(ConfigError, match="LockDuration"):
        provision(engine, replace(config, queues={"old": QueueDescription(lock_duration_ms=50)}), limits=Limits())


def test_a_changed_file_wins_over_what_exists(engine: Engine) -> None:
    provision(engine, read_config(FILE, "file"))
    own = AuthorizationRule("own", "p", "s", ["Send"])
    orders = engine.get_queue("orders")
    assert orders is not None
    engine.update_queue("orders", replace(orders, authorization_rules=[own], max_delivery_count=9))
    engine.create_queue("other")
    changed = FILE.replace("weight > 10", "weight > 20").replace(
        ', large: {filter: "size > 10", action: "SET large = true"}', ""
    )
    assert provision(engine, read_config(changed, "file")) == ["orders", "flights/Subscriptions/heavy"]
    assert engine.get_queue("orders") == QueueDescription(max_delivery_count=5, authorization_rules=[own])
    assert rules(engine, "heavy") == {"heavy": SqlFilter("weight > 20")}
    assert engine.get_queue("other") is not None


def test_a_file_without_rules_leaves_rules_alone(engine: Engine) -> None:
    provision(engine, read_config(FILE, "file"))
    engine.delete_rule("flights", "all", "$Default")
    assert provision(engine, read_config(FILE, "file")) == []
    assert rules(engine, "all") == {}


def test_i2_refusals_are_reported_all_at_once_and_nothing_is_staged(engine: Engine) -> None:
    provision(engine, read_config(FILE, "file"))
    commit = engine.begin_commit()
    assert commit is not None
    engine.end_commit(commit)
    changed = (
        FILE.replace("queues:", "queues:\n  new: {}")
        .replace("{max_delivery_count: 5}", "{requires_session: true}")
        .replace("{lock_duration: 5s}", "{requires_session: true}")
    )
    with pytest.raises(ConfigError) as caught:
        provision(engine, read_config(changed, "entities.yaml"), file="entities.yaml")
    assert [fault.message.partition(":")[0] for fault in caught.value.faults] == ["orders", "flights/Subscriptions/all"]
    assert {fault.file for fault in caught.value.faults} == {"entities.yaml"}
    assert not engine.has_staged
    assert engine.get_queue("new") is None


def test_event_hubs_are_made_and_brought_in_line(engine: Engine) -> None:
    file = "event_hubs:\n  telemetry: {partition_count: 2, consumer_groups: [g]}\n"
    assert provision(engine, read_config(file, "file")) == ["telemetry"]
    assert provision(engine, read_config(file, "file")) == []
    more = file.replace("2", "3")
    assert provision(engine, read_config(more, "file")) == ["telemetry"]
    hub = engine.hubs.find("telemetry")
    assert hub is not None
    assert len(hub.partitions) == 3
    with pytest.raises(ConfigError, match="cannot be reduced"):
        provision(engine, read_config(file, "file"))
    assert len(hub.partitions) == 3
    described = replace(engine.hubs.row("telemetry").description, consumer_group_metadata={"g": "mine"})
    engine.hubs.update("telemetry", described)
    assert provision(engine, read_config(more, "file")) == []
    assert hub.description.consumer_group_metadata == {"g": "mine"}
    rights = "event_hubs: {telemetry: {partition_count: 3, authorization_rules: {reader: {rights: [Listen]}}}}"
    provision(engine, read_config(rights, "file"))
    description = engine.hubs.get("telemetry")
    assert description is not None
    assert [rule.key_name for rule in description.authorization_rules] == ["reader"]


def test_partitions_that_were_added_keep_no_namespace_from_starting(engine: Engine) -> None:
    """Where the file says nothing of them, the default was wanted again, which is fewer: the namespace did not start any more."""
    file = "event_hubs: {telemetry: {}, few: {partition_count: 2}}\n"
    provision(engine, read_config(file, "file"))
    for name in ("telemetry", "few"):
        engine.hubs.update(name, replace(engine.hubs.row(name).description, partition_count=8))
    with pytest.raises(ConfigError, match="cannot be reduced") as reported:
        provision(engine, read_config(file, "file"))
    assert [fault.message.partition(":")[0] for fault in reported.value.faults] == ["few"], "what the file says wins"
    unsaid = file.replace("partition_count: 2", "")
    assert provision(engine, read_config(unsaid, "file")) == []
    assert [len(engine.hubs.row(name).numbers) for name in ("telemetry", "few")] == [8, 8]


def test_consumer_groups_that_the_file_does_not_name_stay(engine: Engine) -> None:
    provision(engine, read_config("event_hubs: {telemetry: {consumer_groups: [Audit]}}", "file"))
    made = engine.hubs.row("telemetry").description
    engine.hubs.update("telemetry", replace(made, consumer_groups=[*made.consumer_groups, "dashboards"]))
    for text in ("{consumer_groups: [audit, $Default]}", "{}"):
        assert provision(engine, read_config(f"event_hubs: {{telemetry: {text}}}", "file")) == []
    changed = "event_hubs: {telemetry: {consumer_groups: [more, audit]}}"
    assert provision(engine, read_config(changed, "file")) == ["telemetry"]
    assert provision(engine, read_config(changed, "file")) == []
    found = engine.hubs.get("telemetry")
    assert found is not None
    assert sorted(found.consumer_groups) == ["Audit", "dashboards", "more"]


def test_hybrid_connections_are_made_and_changed(engine: Engine) -> None:
    text = "hybrid_connections: {stock: {requires_client_authorization: false}, prices: {}}"
    assert provision(engine, read_config(text, "file")) == ["stock", "prices"]
    assert provision(engine, read_config(text, "file")) == []
    assert not engine.hybrid_connections.get("stock").requires_client_authorization
    changed = "hybrid_connections:\n  prices: {status: Disabled, authorization_rules: {caller: {rights: [Send]}}}"
    assert provision(engine, read_config(changed, "file")) == ["prices"]
    assert [rule.rights for rule in engine.hybrid_connections.get("prices").authorization_rules] == [["Send"]]


@pytest.mark.parametrize("text", ["queues: {stock: {}}", "event_hubs: {stock: {}}", "hybrid_connections: {orders: {}}"])
def test_a_name_that_another_kind_has_is_reported_before_anything_is_made(engine: Engine, text: str) -> None:
    engine.hybrid_connections.create("stock")
    engine.create_queue("orders")
    with pytest.raises(ConfigError, match=r"stock|orders"):
        provision(engine, read_config("queues: {fresh: {}}\n" + text if "queues" not in text else text, "file"))
    assert engine.get_queue("fresh") is None


CLOSED = """
queues: {orders: {%s}}
topics: {flights: {%s subscriptions: {all: {%s}}}}
event_hubs: {telemetry: {%s}}
hybrid_connections: {prices: {%s}}
"""


def statuses(engine: Engine) -> list[str]:
    described = (
        engine.get_queue("orders"),
        engine.get_topic("flights"),
        engine.get_subscription("flights", "all"),
        engine.hubs.get("telemetry"),
        engine.hybrid_connections.get("prices"),
    )
    return [str(each.status.value) for each in described if each is not None]


def closed(*status: str) -> str:
    return CLOSED % tuple(
        f"status: {each}" + ("," if at == 1 else "") if each else "" for at, each in enumerate(status)
    )


def test_i3_a_start_opens_nothing_that_was_closed(engine: Engine) -> None:
    """Suspended over the administration API, or fenced by a pair."""
    provision(engine, read_config(closed(*["Disabled"] * 5), "file"))
    assert provision(engine, read_config(closed(*[""] * 5), "file")) == []
    assert statuses(engine) == ["Disabled"] * 5
    provision(engine, read_config(closed(*["Active"] * 5), "file"))
    assert statuses(engine) == ["Active"] * 5
