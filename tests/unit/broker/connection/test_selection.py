"""What the source of a plain receiver may ask for."""

import pytest

from isthmus.amqp.performative import Source, Target
from isthmus.amqp.types import Described, Symbol, ULong

_TEXT = "apache.org:selector-filter:string"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("jms-selector", Described(ULong(0x468C00000004), "k = 'v'")),
        (_TEXT, Described(Symbol(_TEXT), "k = 'v'")),
        (_TEXT, "k = 'v'"),
    ],
    ids=["code", "name", "bare"],
)
async def test_a_selector_is_refused_i1(broker, key, value):
    client = broker.client()
    source = Source(address="orders", filter={Symbol(key): value})
    link = client.session.attach_receiver("r", source, target=Target(address="me"))
    client.pump()
    assert client.detached(link) == "amqp:not-implemented"
    assert link.source is None


async def test_other_filters_and_moving_are_taken(broker):
    client = broker.client()
    source = Source(
        address="orders", distribution_mode=Symbol("move"), filter={Symbol("mine"): Described(Symbol("x:y"), "z")}
    )
    link = client.session.attach_receiver("r", source, target=Target(address="me"))
    client.pump()
    assert client.attached(link)
