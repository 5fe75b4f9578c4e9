"""The namespace's numbers, and Prometheus's form of them."""

from __future__ import annotations

import re
from dataclasses import replace

from isthmus.amqp import section
from isthmus.broker.exposition import entity_text, is_quiet, namespace_text
from isthmus.broker.statistics import EntityRow, entity_rows, namespace_row
from isthmus.entities import QueueDescription
from isthmus.entities.catalog.description import EntityStatus

LINE = re.compile(
    r'(?:# (?:HELP|TYPE) \w+ .+|(\w+)(?:\{\w+="(?:[^"\\]|\\.)*"(?:,\w+="(?:[^"\\]|\\.)*")*\})? [0-9.e+]+)'
)


def rows(broker):
    return {row.entity: row for row in entity_rows(broker.namespace)}


async def test_each_route_of_a_message_is_counted(broker):
    engine, clock = broker.engine, broker.clock
    engine.create_queue("counted", QueueDescription(max_delivery_count=2))
    queue = engine.receiver("counted")

    async def commit():
        await broker.namespace.commits.wait_durable()

    await commit()
    queue.accept([section.encode_message(b"x") for _ in range(10)])
    queue.accept([section.encode_message(b"x", header=section.Header(ttl_ms=50))])
    queue.schedule([(section.encode_message(b"later"), clock.wall_ms() + 60_000)])
    await commit()
    taken = queue.acquire(5)
    queue.complete(taken.tags[:2])
    queue.dead_letter(taken.tags[2:3], "bad", "x")
    queue.defer(taken.tags[3:4])
    await commit()
    clock.advance(10_000)
    engine.tick()
    await commit()
    row = rows(broker)["counted"]
    assert row.kind == "queue"
    assert (row.in_total, row.out_total, row.settled_total) == (12, 5, 2)
    assert (row.active, row.locked, row.dead_letter, row.deferred, row.scheduled) == (6, 1, 1, 1, 1)
    assert (row.dead_lettered_total, row.expired_total, row.refused_total) == (1, 1, 0)
    assert row.size_bytes > 0
    whole = namespace_row(broker.namespace)
    assert whole.commits >= 4
    assert sum(whole.commit_classes) == whole.commits
    assert whole.resident_bytes > 1 << 20
    assert whole.healthy


async def test_messages_in_transit_to_another_entity_are_counted_as_that(broker):
    engine = broker.engine
    engine.create_queue("target", QueueDescription())
    engine.create_queue("resting", QueueDescription(forward_to="target", status=EntityStatus.RECEIVE_DISABLED))
    engine.create_queue("source", QueueDescription(forward_to="target"))
    engine.sender("resting").accept([section.encode_message(b"x") for _ in range(3)])
    await broker.namespace.commits.wait_durable()
    assert (rows(broker)["resting"].active, rows(broker)["resting"].transfer) == (0, 3)
    engine.delete_queue("target")
    source = engine.sender("source")
    source.accept([section.encode_message(b"x") for _ in range(2)])
    await broker.namespace.commits.wait_durable()
    row = rows(broker)["source"]
    assert (row.active, row.transfer, row.dead_letter) == (0, 2, 0)
    assert source.transfer_dead_letters.active_count == 2
    assert row.size_bytes == source.transfer_dead_letters.size_bytes


async def test_sessions_are_counted_and_so_is_what_happens_in_them(broker):
    engine = broker.engine
    engine.create_queue("counted", QueueDescription(requires_session=True))
    queue = engine.receiver("counted")
    queue.accept([section.encode_message(b"x", properties={"group_id": session}) for session in "aab"])
    await broker.namespace.commits.wait_durable()
    taken = queue.sessions.open_session("a").messages
    taken.complete(taken.acquire(1).tags)
    taken.acquire(1)
    await broker.namespace.commits.wait_durable()
    row = rows(broker)["counted"]
    assert (row.sessions, row.held_sessions, row.active, row.locked) == (2, 1, 2, 1)
    assert (row.in_total, row.out_total, row.settled_total) == (3, 2, 1)


async def test_refused_deliveries_are_counted(broker):
    client = broker.client()
    link = client.sender("orders")
    link.send(b"no message", b"tag1")
    await client.settle()
    assert rows(broker)["orders"].refused_total == 1


async def test_every_line_is_prometheus_s_i1_i2(broker):
    name = 'a"b\\c'
    text = namespace_text(namespace_row(broker.namespace)) + "".join(
        entity_text([EntityRow("q", "queue", active=1), EntityRow(name, "queue", in_total=2)])
    )
    names = []
    for line in text.splitlines():
        found = LINE.fullmatch(line)
        assert found, line
        if found[1]:
            names.append(found[1])
        if line.startswith("# TYPE") and line.endswith("counter"):
            assert line.split()[2].endswith("_total")
    groups = [name for index, name in enumerate(names) if not index or names[index - 1] != name]
    assert len(groups) == len(set(groups))
    assert all(name.startswith(("isthmus_namespace_", "isthmus_entity_")) for name in names)
    assert 'isthmus_entity_received_messages_total{entity="a\\"b\\\\c",kind="queue"} 2\n' in text


def test_an_entity_without_anything_is_quiet_i3():
    row = EntityRow("q", "queue")
    assert is_quiet(row)
    for name, _ in row.values():
        assert not is_quiet(replace(row, **{name: 1}))
