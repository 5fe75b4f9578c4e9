"""A client that shows tokens over `$cbs`, as the unit tests of the broker do."""

from __future__ import annotations

from isthmus.amqp import section
from isthmus.amqp.performative import Source, Target


def put_token(client, token, audience="sb://host/orders", message_id="t1"):
    requests = client.session.attach_sender("cbs-s", Target(address="$cbs"), source=Source(address="$cbs"))
    replies = client.session.attach_receiver("cbs-r", Source(address="$cbs"), target=Target(address="$cbs"))
    client.pump()
    replies.grant(10)
    send_token(client, requests, token, audience, message_id)
    return requests, replies


def send_token(client, requests, token, audience="sb://host/orders", message_id="t2"):
    requests.send(
        section.encode_message(
            token,
            properties={"message_id": message_id},
            application_properties={"operation": "put-token", "type": "jwt", "name": audience},
            value_body=True,
        ),
        b"\0\0\0\1",
    )
    client.pump()
