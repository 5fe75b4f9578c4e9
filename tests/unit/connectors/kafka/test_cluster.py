"""The meaning of librdkafka's errors, with a server that simulates a broker."""

from __future__ import annotations

import socket
import struct
import threading
import time

import pytest
from confluent_kafka import KafkaError, Producer

from isthmus.connectors.kafka.cluster import error_of

API_VERSIONS, UNSUPPORTED_VERSION = 18, 35
# By key: the lowest and the highest version.
KNOWN = {18: (0, 3), 17: (0, 1), 36: (0, 1), 3: (0, 9), 0: (3, 8)}


def serve(server: socket.socket) -> None:
    """Sends its versions, and ends each connection with the login."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection, connection.makefile("rb") as asked:
            while size := asked.read(4):
                key, version, correlation = struct.unpack_from(">hhi", asked.read(*struct.unpack(">i", size)))
                if key != API_VERSIONS:
                    break
                answer = struct.pack(">ihi", correlation, UNSUPPORTED_VERSION if version > 2 else 0, len(KNOWN))
                answer += b"".join(struct.pack(">hhh", each, *versions) for each, versions in KNOWN.items())
                connection.sendall(struct.pack(">i", len(answer)) + answer)


def test_a_broker_that_goes_amid_a_login_has_not_refused_it() -> None:
    """librdkafka reports it by the code of a wrong password: what was in flight was given up, and sent again."""
    errors: list[KafkaError] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        producer = Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}",
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "isthmus",
                "sasl.password": "hush",
                "error_cb": errors.append,
                "log_level": 0,
            }
        )
        limit = time.monotonic() + 30
        while not any(each.code() == KafkaError._AUTHENTICATION for each in errors) and time.monotonic() < limit:
            producer.poll(0.05)
        del producer
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    cut = next(each.str() for each in errors if each.code() == KafkaError._AUTHENTICATION)
    assert "handshake failed" in cut
    assert error_of(KafkaError(KafkaError._AUTHENTICATION, cut), "orders").retryable


@pytest.mark.parametrize(
    "text",
    [
        "SASL authentication error: Authentication failed: Invalid username or password",
        'Failed to acquire SASL OAUTHBEARER token: {"error":"invalid_client"}',
        "SASL PLAIN mechanism handshake failed: Broker: Unsupported SASL mechanism: broker's supported mechanisms: GSSAPI",
    ],
)
def test_a_login_that_was_refused_does_not_pass(text: str) -> None:
    assert not error_of(KafkaError(KafkaError._AUTHENTICATION, text), "orders").retryable


@pytest.mark.parametrize(
    "text",
    [
        "Failed to connect to 127.0.0.1:1 after 0 ms: Could not connect to server",
        "Could not resolve host: login.test",
        "Operation timed out after 20000 milliseconds with 0 bytes received",
    ],
)
def test_a_token_without_an_issuer_may_come(text: str) -> None:
    error = KafkaError(KafkaError._AUTHENTICATION, f"Failed to acquire SASL OAUTHBEARER token: {text}")
    assert error_of(error, "orders").retryable
