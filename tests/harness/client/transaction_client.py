"""What tests of transactions share: the client's side of AMQP transactions, over any connection of `isthmus.amqp`."""

from __future__ import annotations

from typing import Any

from isthmus.amqp import Link
from isthmus.amqp.frame import frame
from isthmus.amqp.performative import Composite, Coordinator, Declare, Discharge, Source, TransactionalState, Transfer

AMQP_VALUE = b"\0Sw"


def attach_coordinator(amqp_session: Any, name: str = "transactions") -> Link:
    link: Link = amqp_session.attach_sender(
        name, Coordinator(capabilities=["amqp:local-transactions"]), source=Source(address="me")
    )
    return link


def send_with_state(
    link: Link, payload: bytes, state: Composite | None, *, settled: bool = False, message_format: int = 0
) -> int:
    """Sends a delivery of one frame with a state; its id."""
    amqp_session = link.amqp_session
    delivery_id = amqp_session.next_delivery_id
    transfer = Transfer(
        handle=link.handle,
        delivery_id=delivery_id,
        delivery_tag=delivery_id.to_bytes(4, "big"),
        message_format=message_format,
        settled=settled,
        state=state,
    )
    data = frame(amqp_session.channel, transfer)
    whole = (len(data) + len(payload)).to_bytes(4, "big") + data[4:] + payload
    amqp_session.connection.write(whole)
    amqp_session.sent_frames(1)
    amqp_session.remember_sent(link, delivery_id, 1, settled)
    link.credit -= 1
    link.delivery_count += 1
    return int(delivery_id)


def declare(link: Link, **fields: Any) -> int:
    return send_with_state(link, AMQP_VALUE + Declare(**fields).encode(), None)


def discharge(link: Link, txn_id: bytes, *, fail: bool = False) -> int:
    return send_with_state(link, AMQP_VALUE + Discharge(txn_id, fail).encode(), None)


def within(txn_id: bytes, outcome: Composite | None = None) -> TransactionalState:
    return TransactionalState(txn_id, outcome)
