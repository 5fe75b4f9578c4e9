"""The composed server: ports, refusals, restart, and what a folder keeps."""

import asyncio
import json
import logging
import os
import stat

import aiohttp
import pytest

from harness.check.until import until_async
from isthmus.broker.net.listener import ListenError
from isthmus.broker.security.keyring import Keyring
from isthmus.broker.security.sas import make_token
from isthmus.broker.server import Options, Server, is_loopback
from isthmus.clock import SystemClock
from isthmus.errors import ConfigError, InvalidArgumentError, StoreError, UnauthorizedError


def options(folder, **more):
    return Options(**{"data": folder, "port": 0, "tls_port": 0, "http_port": 0, **more})


@pytest.fixture
async def serve():
    servers = []

    async def start(given):
        server = Server(given)
        servers.append(server)
        await server.start()
        return server

    yield start
    for server in reversed(servers):
        await server.stop()


async def answers(host, port, data=b"AMQP\0\1\0\0"):
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(data)
    try:
        async with asyncio.timeout(10):
            return await reader.read(8)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_it_says_how_to_connect_i1(serve, tmp_path):
    server = await serve(options(tmp_path / "data"))
    described = server.describe()
    ports = described["ports"]
    assert len(set(ports.values())) == 3
    assert described["connection_string"].startswith(f"Endpoint=sb://127.0.0.1:{ports['amqp']}/;SharedAccessKeyName=")
    assert described["connection_string"].endswith(";UseDevelopmentEmulator=true")
    assert f":{ports['http']}/" in described["admin_connection_string"]
    for port in ports.values():
        assert await answers("127.0.0.1", port) == b"AMQP\0\1\0\0"
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/health") as reply:
            assert reply.status == 200


async def test_one_port_may_serve_all(serve, tmp_path):
    first = await serve(options(tmp_path / "one"))
    port = first.ports["amqp"]
    await first.stop()
    server = await serve(options(tmp_path / "one", port=port, tls_port=port, http_port=port))
    assert set(server.ports.values()) == {port}


async def test_keys_and_certificate_outlast_a_restart_and_are_the_owners_only(serve, tmp_path):
    folder = tmp_path / "data"
    first = await serve(options(folder))
    key = first.describe()["connection_string"].split("SharedAccessKey=")[1]
    authority = (folder / "certificate" / "ca.pem").read_bytes()
    await first.stop()
    second = await serve(options(folder))
    assert second.describe()["connection_string"].endswith(key)
    assert (folder / "certificate" / "ca.pem").read_bytes() == authority
    for file in (folder / "keys.json", folder / "certificate" / "server-key.pem"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_a_folder_in_use_is_refused_i1(serve, tmp_path):
    await serve(options(tmp_path / "data"))
    with pytest.raises(StoreError, match="in use by another process"):
        await serve(options(tmp_path / "data"))


async def test_a_port_in_use_is_refused_and_the_folder_is_free_again(serve, tmp_path):
    first = await serve(options(tmp_path / "one"))
    with pytest.raises(ListenError, match=r"Cannot listen on 127\.0\.0\.1, port"):
        await serve(options(tmp_path / "two", port=first.ports["amqp"]))
    await serve(options(tmp_path / "two"))


@pytest.mark.parametrize("allow_plain", [False, True])
async def test_elsewhere_than_on_loopback_only_tls_is_served_i2(serve, tmp_path, allow_plain):
    server = await serve(options(tmp_path / "data", host="0.0.0.0", allow_plain=allow_plain))
    answer = await answers("127.0.0.1", server.ports["amqp"])
    described = server.describe()
    assert answer == (b"AMQP\0\1\0\0" if allow_plain else b"")
    assert ("UseDevelopmentEmulator" in described["connection_string"]) is allow_plain


async def test_a_file_of_entities_is_read(serve, tmp_path):
    file = tmp_path / "entities.yaml"
    file.write_text(
        "namespace: ewr\nqueues: {orders: {lock_duration: 10s}}\ntopics: {flights: {subscriptions: {all: {}}}}"
    )
    server = await serve(options(tmp_path / "data", config=file))
    engine = server.namespace.engine
    assert server.namespace.name == "ewr"
    assert engine.get_queue("orders").lock_duration_ms == 10_000
    assert [name for name, _ in engine.list_subscriptions("flights")] == ["all"]


async def test_the_namespace_s_own_rules_are_those_of_its_file(serve, tmp_path):
    file, folder = tmp_path / "entities.yaml", tmp_path / "data"
    stored = []
    for text in (
        "authorization_rules: {in: {rights: [Send]}, out: {rights: [Listen]}}",
        "authorization_rules: {in: {rights: [Send]}}",
        "queues: {q: {}}",
    ):
        file.write_text(text)
        server = await serve(options(folder, config=file))
        await server.stop()
        rules = json.loads((folder / "keys.json").read_text())["rules"]
        stored.append(
            {rule["key_name"]: (rule["primary_key"], rule["secondary_key"], rule["rights"]) for rule in rules}
        )
    first, second, third = stored
    assert set(first) == {"RootManageSharedAccessKey", "in", "out"}
    assert {name: first[name] for name in second} == second == third
    assert set(second) == {"RootManageSharedAccessKey", "in"}
    assert stat.S_IMODE((folder / "keys.json").stat().st_mode) == 0o600


async def test_a_key_that_changes_in_its_file_counts_while_the_namespace_runs(serve, tmp_path, caplog):
    server = await serve(options(tmp_path / "data"))
    file = tmp_path / "data" / "keys.json"
    authority = server.namespace.authority
    content = json.loads(file.read_text())
    old = content["rules"][0]["primary_key"]
    name = content["rules"][0]["key_name"]
    content["rules"][0]["primary_key"] = "fresh"
    file.write_text(json.dumps(content))
    os.utime(file, (1, 1))
    server._keys.refresh()
    assert authority.authorise_plain(name, "fresh")
    with pytest.raises(UnauthorizedError):
        authority.authorise_plain(name, old)
    # What cannot be read leaves the keys as they are.
    file.write_text("nonsense")
    os.utime(file, (2, 2))
    server._keys.refresh()
    assert authority.authorise_plain(name, "fresh")
    assert "keys not read again" in caplog.text
    assert "fresh" not in caplog.text


@pytest.mark.parametrize(
    ("framing", "body"), [("Content-Length: 10", "half"), ("Transfer-Encoding: chunked", "4\r\nhalf\r\n")]
)
@pytest.mark.parametrize("end", ["", "no chunk\r\n"])
async def test_a_body_that_breaks_off_is_the_clients_fault(serve, tmp_path, caplog, framing, body, end):
    server = await serve(options(tmp_path / "data"))
    rule = Keyring.open(tmp_path / "data" / "keys.json", SystemClock()).rules[0]
    token = make_token("sb://localhost/", rule.key_name, rule.primary_key, SystemClock().wall_ms() + 600_000)
    _, writer = await asyncio.open_connection("127.0.0.1", server.ports["http"])
    head = f"PUT /q HTTP/1.1\r\nHost: h\r\nAuthorization: {token}\r\n{framing}\r\n\r\n"
    writer.write(f"{head}{body}".encode())
    admission = server.namespace.admission
    await until_async(lambda: admission.sockets and not admission.strangers)
    writer.write(end.encode())
    writer.close()
    await until_async(lambda: "/q: refused with 400" in caplog.text or "failed" in caplog.text)
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []


async def test_a_file_with_faults_is_refused(serve, tmp_path):
    file = tmp_path / "entities.yaml"
    file.write_text("queus: {}\n")
    with pytest.raises(ConfigError, match=r"entities\.yaml:1:1"):
        await serve(options(tmp_path / "data", config=file))


async def test_options_that_make_no_sense_are_refused(serve, tmp_path):
    (tmp_path / "file").write_text("")
    for wrong in (options(tmp_path / "file"), options(tmp_path / "data", certificate=tmp_path / "x.pem")):
        with pytest.raises(InvalidArgumentError):
            await serve(wrong)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.1", False), ("example.org", False), ("", False)],
)  # fmt: skip
def test_loopback(host, loopback):
    assert is_loopback(host) is loopback
