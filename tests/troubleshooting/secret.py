"""Cases of the page's section Secrets, certificates and rights."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError

from isthmus.connectors import secret
from isthmus.connectors.amqp.option import SOURCE, SourceOptions, read_as
from isthmus.connectors.amqp.remote import endpoint_of
from isthmus.connectors.rabbitmq.option import read_broker
from isthmus.connectors.rabbitmq.port.handshake import dial
from isthmus.connectors.rabbitmq.protocol import wire
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.connectors.servicebus.administration.client import administration_errors
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.connectors.servicebus.plain_host import check_plain
from isthmus.topology.file.reference import SecretReference
from isthmus.topology.linter import read
from troubleshooting.case import Stage, elsewhere, shows


@shows("the environment variable is not set")
def _variable(stage: Stage) -> None:
    stage.patch.delenv("EWR_CONNECTION", raising=False)
    secret.resolve("env:EWR_CONNECTION")


@shows("the file has no such key or an empty value")
def _key_of_file(stage: Stage) -> None:
    file = stage.folder / "secrets.env"
    file.write_text("JFK=x\nEWR=\n")
    secret.resolve(f"file:{file}#EWR")


@shows("this is no reference to a secret")
def _no_reference(stage: Stage) -> None:
    SecretReference.parse("Endpoint=sb://ewr.servicebus.windows.net/")


@shows("a secret is in the file")
def _literal(stage: Stage) -> None:
    read("isthmus: 1\nnamespaces: {ewr: {connection: 'SharedAccessKey=bm90LWEta2V5LWJ1dC1sb25n'}}\n", "isthmus.yaml")


@shows("connection string: …")
def _connection_string(stage: Stage) -> None:
    ConnectionString.parse("Endpoint=sb://ewr.servicebus.windows.net/")


@shows("refused the key or identity")
def _refused(stage: Stage) -> None:
    answered = ClientAuthenticationError("401: InvalidSignature")
    answered.status_code = 401
    with administration_errors("ewr"):
        raise answered


@shows("its TLS certificate is signed by an authority that is not trusted here")
def _authority(stage: Stage) -> None:
    with administration_errors("ewr"):
        raise ServiceRequestError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")


@shows("UseDevelopmentEmulator=true means no TLS")
def _plain(stage: Stage) -> None:
    check_plain("ewr.example.com")


@shows("without TLS the password could be read on the network")
def _plain_password(stage: Stage) -> None:
    options = {"url": "amqp://ewr.example.com", "username": "u", "password": "env:PASSWORD", "entity": "q"}
    endpoint_of(read_as(SOURCE, SourceOptions, options))


elsewhere(
    "The token", "tests/unit/broker/security/test_authority.py::test_i2_unknown_name_and_wrong_key_get_the_same_answer"
)


@contextlib.contextmanager
def _rabbit(mechanisms: bytes) -> Iterator[int]:
    """A broker that offers SASL mechanisms and closes the socket when a client logs in; yields its port."""
    start = b"\0\x09" + struct.pack(">I", 0) + wire.long_text(mechanisms) + wire.long_text(b"en_US")

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(8)
            client.sendall(wire.method(0, M.CONNECTION_START, start))
            client.recv(1 << 16)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


def _dial(stage: Stage, mechanisms: bytes) -> None:
    stage.patch.setenv("PASSWORD", "wrong")
    with _rabbit(mechanisms) as port:
        dial(read_broker({"host": f"127.0.0.1:{port}", "username": "u", "password": "env:PASSWORD", "tls": "false"}))


@shows("the broker refused to log in")
def _log_in(stage: Stage) -> None:
    _dial(stage, b"PLAIN")


@shows("the broker does not accept …, but …")
def _mechanism(stage: Stage) -> None:
    _dial(stage, b"EXTERNAL AMQPLAIN")


@shows("no Azure identity on this machine")
def _identity(stage: Stage) -> None:
    def ask(url: str, name: str) -> str:
        raise ClientAuthenticationError(
            "DefaultAzureCredential failed to retrieve a token from the included credentials.\n"
            "Attempted credentials:\n"
            "\tEnvironmentCredential: EnvironmentCredential authentication unavailable.\n"
            "\tAzureCliCredential: Azure CLI not found on path"
        )

    stage.patch.setattr(secret, "_ask_vault", ask)
    secret.resolve("keyvault:contoso/ewr-connection")


@shows("no token for the identity")
def _token(stage: Stage) -> None:
    with administration_errors("ewr"):
        raise ClientAuthenticationError("Authentication failed: login.microsoftonline.com: timed out")
