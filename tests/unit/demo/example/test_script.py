"""What an example says it does."""

from __future__ import annotations

import json

import pytest

from isthmus.amqp import section
from isthmus.demo.consumer import stamp
from isthmus.demo.example.script import Outage, Work, messages_of, read_script
from isthmus.errors import ConfigError
from isthmus.topology.model import Endpoint

TEXT = """
x-example:
  entities: {ewr: {queues: {orders: {max_delivery_count: 1}}}}
  publish:
    - {to: ewr/flights, where: {origin: EWR}}
    - {to: jfk/sky, table: weather, session: origin, partition_key: origin, count: 5, ttl_ms: 9000, properties: {x: 1}}
  work: [{from: ewr/orders, fail_every: 10, reason: TooLate}]
  outage: {namespace: jfk, seconds: 1}
"""


def test_a_script_is_read() -> None:
    script = read_script(TEXT, "federation.yaml")
    assert script.work == (Work(Endpoint("ewr", "orders"), 10, "TooLate"),)
    assert script.outage == Outage("jfk", 1)
    assert [(each.publisher, str(each.to)) for each in script.publish] == [
        ("ewr-1", "ewr/flights"),
        ("jfk-2", "jfk/sky"),
    ]


def test_i1_messages_are_numbered_rows_that_fit() -> None:
    flights, weather = read_script(TEXT, "federation.yaml").publish
    made = list(messages_of(flights, 30))
    assert [stamp(message)[:2] for message in made] == [("ewr-1", number) for number in range(1, len(made) + 1)]
    where = section.locate(made[0])
    assert section.decode_map(made[0], where.application_properties)["origin"] == "EWR"
    sky = list(messages_of(weather, 30))
    assert len(sky) == 5
    where = section.locate(sky[0])
    properties = section.decode_properties(sky[0], where.properties)
    assert (properties["message_id"], properties["group_id"]) == ("jfk-2-1", "EWR")
    assert section.decode_header(sky[0], where.header).ttl_ms == 9000
    assert section.decode_map(sky[0], where.message_annotations) == {"x-opt-partition-key": "EWR"}
    assert json.loads(sky[0].partition(b"{")[1] + sky[0].partition(b"{")[2])["temp"] == 39.02


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: 1", "says nowhere what to publish"),
        ("x-example: {publish: [{to: ewr}]}", "write namespace/entity"),
        ("x-example: {publish: [{to: ewr/f, table: hats}]}", "no table hats"),
        ("x-example: {publish: [{to: ewr/f, hat: 1}]}", "hat"),
        ("x-example: {publish: [{table: flights}]}", "to"),
    ],
)
def test_i2_a_script_that_cannot_be_understood_is_refused(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_script(text, "federation.yaml")
