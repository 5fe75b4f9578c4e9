"""Metrics, statistics and back-ups over HTTP: what is shown, and to whom."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
from datetime import UTC, datetime

import aiohttp
import pytest

from harness.check.until import until_async
from isthmus.broker import operator_api
from isthmus.broker.security.keyring import Keyring
from isthmus.broker.security.sas import make_token
from isthmus.broker.server import Options, Server
from isthmus.clock import SystemClock
from isthmus.entities import AuthorizationRule, QueueDescription
from isthmus.errors import StoreError, UnauthorizedError


class Served:
    def __init__(self, server: Server, http: aiohttp.ClientSession, folder) -> None:
        self.server = server
        self.http = http
        self.folder = folder
        self.root = f"http://127.0.0.1:{server.ports['http']}"
        self.keyring = Keyring.open(folder / "keys.json", SystemClock())

    def authorization(self, name: str = "RootManageSharedAccessKey") -> dict[str, str]:
        rule = next(rule for rule in self.keyring.rules if rule.key_name == name)
        expires = int((datetime.now(UTC).timestamp() + 600) * 1000)
        return {"Authorization": make_token(self.root + "/", name, rule.primary_key, expires)}

    async def get(self, path: str, **more):
        async with self.http.get(self.root + path, **more) as reply:
            return reply.status, await reply.text()

    async def post(self, path: str, **more):
        async with self.http.post(self.root + path, **more) as reply:
            return reply.status, await reply.json()


@pytest.fixture
async def served(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    keyring = Keyring.open(folder / "keys.json", SystemClock())
    keyring.put(AuthorizationRule("reader", "r1", "r2", ["Listen"]))
    keyring.save(folder / "keys.json")
    server = Server(Options(folder, port=0, tls_port=0, http_port=0))
    await server.start()
    try:
        async with aiohttp.ClientSession() as http:
            yield Served(server, http, folder)
    finally:
        await server.stop()


async def test_metrics_are_for_this_machine_or_for_manage_i1(served, monkeypatch):
    status, text = await served.get("/metrics")
    assert status == 200
    assert "isthmus_namespace_healthy 1\n" in text
    monkeypatch.setattr(operator_api, "_is_local", lambda http: False)
    assert (await served.get("/metrics"))[0] == 401
    assert (await served.get("/metrics", headers=served.authorization("reader")))[0] == 401
    assert (await served.get("/metrics", headers=served.authorization()))[0] == 200
    key = served.keyring.rules[0].primary_key
    for credentials, expected in ((f"RootManageSharedAccessKey:{key}", 200), ("reader:r1", 401), ("no:no", 401)):
        basic = base64.b64encode(credentials.encode()).decode()
        assert (await served.get("/metrics", headers={"Authorization": f"Basic {basic}"}))[0] == expected
    for unreadable in ("???", "/w=="):
        assert (await served.get("/metrics", headers={"Authorization": f"Basic {unreadable}"}))[0] == 401
    with pytest.raises(UnauthorizedError):
        operator_api._decoded("\udcff")  # as a byte that is no text comes
    # Manage on an entity is not Manage on the namespace.
    rule = AuthorizationRule("owner", "o1", "o2", ["Send", "Listen", "Manage"])
    served.server.namespace.engine.create_queue("owned", QueueDescription(authorization_rules=[rule]))
    basic = base64.b64encode(b"owner:o1").decode()
    assert (await served.get("/metrics", headers={"Authorization": f"Basic {basic}"}))[0] == 401


async def test_a_reader_that_goes_is_no_fault(served, monkeypatch, caplog):
    monkeypatch.setattr(operator_api, "_is_local", lambda http: http.transport.abort() or True)
    with pytest.raises(aiohttp.ClientError):
        await served.get("/metrics")
    await asyncio.sleep(0)
    assert [record for record in caplog.records if record.exc_info] == []


async def test_statistics_and_backups_need_manage_from_anywhere_i1(served):
    assert (await served.get("/$isthmus/statistics"))[0] == 401
    assert (await served.post("/$isthmus/backup"))[0] == 401
    assert (await served.post("/$isthmus/backup", headers=served.authorization("reader")))[0] == 401
    assert not (served.folder / "backups").exists()


async def test_statistics_of_many_entities_come_in_parts_i2(served, monkeypatch):
    monkeypatch.setattr(operator_api, "_ROWS_AT_ONCE", 7)
    engine = served.server.namespace.engine
    for number in range(50):
        engine.create_queue(f"q{number}")
    await served.server.namespace.commits.wait_durable()
    async with served.http.get(served.root + "/$isthmus/statistics", headers=served.authorization()) as reply:
        found = await reply.json()
    assert {row["entity"] for row in found["entities"]} == {f"q{number}" for number in range(50)}
    assert found["namespace"]["entities"] == 50
    assert found["namespace"]["store_bytes"] > 0
    status, text = await served.get("/metrics")
    assert (status, 'entity="q1"' in text) == (200, False)


async def test_an_entity_may_be_called_metrics(served):
    headers = served.authorization()
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
        'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
    )
    async with served.http.put(served.root + "/metrics?api-version=2021-05", data=body, headers=headers) as made:
        assert made.status == 201
    status, text = await served.get("/metrics?api-version=2021-05", headers=headers)
    assert (status, "QueueDescription" in text) == (200, True)


async def test_a_backup_is_a_data_folder_i3(served, tmp_path):
    engine = served.server.namespace.engine
    engine.create_queue("q")
    status, made = await served.post("/$isthmus/backup?name=first", headers=served.authorization())
    assert (status, made["folder"]) == (200, str((served.folder / "backups" / "first").resolve()))
    folder = served.folder / "backups" / "first"
    assert stat.S_IMODE((folder / "keys.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [each.name for each in folder.parent.iterdir()] == ["first"]
    copy = Server(Options(folder, port=0, tls_port=0, http_port=0))
    await copy.start()
    try:
        assert copy.namespace.engine.get_queue("q") is not None
        key = copy.describe()["connection_string"].split("SharedAccessKey=")[1]
        assert key == served.server.describe()["connection_string"].split("SharedAccessKey=")[1]
    finally:
        await copy.stop()
    status, refused = await served.post("/$isthmus/backup?name=first", headers=served.authorization())
    assert (status, "there already" in refused["error"]["message"]) == (400, True)
    for name in ("..", "a/b", "", ".x", "%2e%2e%2fx"):
        status, _ = await served.post(f"/$isthmus/backup?name={name}", headers=served.authorization())
        assert status == (200 if not name else 400)


async def test_a_backup_that_fails_leaves_nothing_i1(served, monkeypatch):
    def fail(folder):
        folder.mkdir()
        raise StoreError("no room")

    monkeypatch.setattr(served.server.namespace.store, "checkpoint", fail)
    status, refused = await served.post("/$isthmus/backup?name=x", headers=served.authorization())
    assert (status, refused["error"]["code"]) == (503, "store")
    assert list((served.folder / "backups").iterdir()) == []


async def test_health_shows_a_failed_disk_and_that_it_works_again(served, monkeypatch):
    namespace = served.server.namespace
    assert await served.get("/health") == (200, '{"status": "healthy"}')
    store, write = namespace.store, namespace.store.write

    def refuse(batch):
        raise StoreError(
            "The store in '/srv/my data/a' refused a write: no room: While appending to file: /srv/my data/9.log: 7/8"
        )

    monkeypatch.setattr(store, "write", refuse)
    namespace.engine.create_queue("lost")
    with pytest.raises(StoreError):
        await namespace.commits.wait_durable()
    status, text = await served.get("/health")
    assert (status, json.loads(text)["status"]) == (503, "unhealthy")
    assert "The store refuses changes: " in text
    reason = json.loads(text)["reason"]
    assert reason.endswith("The store in … refused a write: no room: While appending to file: …: 7/8")  # no places
    assert "isthmus_namespace_healthy 0\n" in (await served.get("/metrics"))[1]
    monkeypatch.setattr(store, "write", write)
    namespace._probe()
    await namespace.commits.wait_durable()
    assert (await served.get("/health"))[0] == 200


async def test_health_says_that_the_namespace_stops_while_it_drains(tmp_path, monkeypatch):
    """On an existing connection; new ones are refused by then."""
    server = Server(Options(tmp_path / "data", port=0, tls_port=0, http_port=0))
    await server.start()
    going = asyncio.Event()
    monkeypatch.setattr(server.namespace.commits, "wait_durable", going.wait)
    async with aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{server.ports['http']}/health"
        async with http.get(url) as reply:
            assert reply.status == 200
        stopping = asyncio.ensure_future(server.stop())
        await until_async(lambda: server.namespace.is_stopping)
        async with http.get(url) as reply:
            assert (reply.status, await reply.json()) == (
                503, {"status": "stopping", "reason": "The namespace is stopping."},
            )  # fmt: skip
        with pytest.raises(OSError, match="Connect"):
            await asyncio.open_connection("127.0.0.1", server.ports["http"])
        going.set()
        await stopping


async def test_no_probe_reports_healthy_while_the_namespace_starts(tmp_path, monkeypatch):
    """Neither before the ports are open nor while the HTTP server loads."""
    import isthmus.broker.server as module

    gate = asyncio.Event()
    load = module._load_http

    async def late(*arguments):
        await gate.wait()
        await load(*arguments)

    monkeypatch.setattr(module, "_load_http", late)
    server = Server(Options(tmp_path / "data", port=0, tls_port=0, http_port=0))
    await server.start()
    try:
        async with aiohttp.ClientSession() as http:
            url = f"http://127.0.0.1:{server.ports['http']}/health"
            asked = asyncio.ensure_future(http.get(url))
            await asyncio.wait([asked], timeout=0.2)
            assert not asked.done()
            gate.set()
            async with await asked as reply:
                assert reply.status == 200
    finally:
        await server.stop()
