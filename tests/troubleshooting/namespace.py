"""Cases of the page's sections A namespace of isthmus, and Client library."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import stat
import time
from contextlib import redirect_stderr, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import typer
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from isthmus.broker.server import Options, Server
from isthmus.broker.zone import check_zones, close_zoned, open_zoned
from isthmus.cli.app import create_app
from isthmus.client import DurableSender
from isthmus.client.outbox.table import SqliteOutbox
from isthmus.entities.storage.upgrade import FORMAT, ensure_format
from isthmus.store import MemoryJournal, RocksJournal
from isthmus.store.private_folder import make_private
from isthmus.store.zone import ZonedJournal
from troubleshooting.case import Stage, shows

NOWHERE = "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=a;SharedAccessKey=Yg==;UseDevelopmentEmulator=true"
_REPAIR_SECONDS = 60.0


@shows("in use by another process")
def _folder_in_use(stage: Stage) -> None:
    journal = RocksJournal(stage.folder / "store")
    try:
        RocksJournal(stage.folder / "store")
    finally:
        journal.close()


def _serve(folder: Path, **options: Any) -> None:
    async def start() -> None:
        server = Server(Options(**{"data": folder, "port": 0, "tls_port": 0, "http_port": 0, **options}))
        await server.start()
        await server.stop()

    asyncio.run(start())


@shows("Cannot listen on")
def _port_taken(stage: Stage) -> None:
    _serve(stage.folder / "data", port=stage.serve().ports["amqp"])


@shows("can be used by others, and messages would be open to them")
def _open_folder(stage: Stage) -> None:
    folder = stage.folder / "shared"
    folder.mkdir()
    folder.chmod(0o777 | stat.S_ISVTX)
    make_private(folder)


@shows("takes no writes")
def _full_disk(stage: Stage) -> None:
    journal = RocksJournal(stage.folder / "store")
    batch = journal.batch()
    batch.put(b"a", b"1")
    journal.write(batch)
    usage = shutil.disk_usage(stage.folder)
    try:
        stage.patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
        journal.reopen()
        journal.write(batch)
    finally:
        journal.close()


@shows("is in zones: serve it with")
def _zones_left_out(stage: Stage) -> None:
    data = stage.folder / "data"
    data.mkdir()
    close_zoned(open_zoned(data, [stage.folder / name for name in "abc"]))
    check_zones(data, ())


@shows("contains a copy of another namespace")
def _zone_of_another(stage: Stage) -> str:
    folders = [stage.folder / name / "store" for name in "abcdef"]
    for three in (folders[:3], folders[3:]):
        journal = ZonedJournal(three)
        batch = journal.batch()
        batch.put(b"a", b"1")
        journal.write(batch)
        journal.sync()
        journal.close()
    mixed = ZonedJournal([*folders[:2], folders[5]])
    deadline = time.monotonic() + _REPAIR_SECONDS
    while "another namespace" not in stage.log.text and time.monotonic() < deadline:
        time.sleep(0.05)
    mixed.close()
    return stage.log.text


@shows("The store has format …, this release reads formats")
def _format(stage: Stage) -> None:
    journal = MemoryJournal()
    batch = journal.batch()
    batch.put(FORMAT, b"99")
    journal.write(batch)
    ensure_format(journal, 0, bytes)


@shows("the emulator's key is known to everybody")
def _emulator(stage: Stage) -> None:
    _serve(stage.folder / "data", host="0.0.0.0", emulator=True)


# ---- client library


def _box(stage: Stage) -> Path:
    with DurableSender(NOWHERE, "orders", stage.folder / "box", drain=False) as sender:
        sender.send_messages(ServiceBusMessage("x"))
    return stage.folder / "box"


@shows("is for …, not for …; name another folder for each entity")
def _other_entity(stage: Stage) -> None:
    DurableSender(NOWHERE, "flights", _box(stage), drain=False)


@shows("messages still wait in …")
def _drain(stage: Stage) -> str:
    stage.patch.setenv("ISTHMUS_CONNECTION", NOWHERE)
    arguments = ["outbox", "drain", str(_box(stage)), "--timeout", "0.2"]
    with redirect_stderr(StringIO()) as errors, suppress(typer.Exit):
        create_app("outbox")(args=arguments, standalone_mode=False)
    return errors.getvalue()


@shows("a message for … has … bytes; the limit is")
def _too_large(stage: Stage) -> str:
    connection = sqlite3.connect(stage.folder / "application.db")
    try:
        SqliteOutbox(connection, "orders", "outbox", 1024).add(ServiceBusMessage(bytes(2048)))
    except MessageSizeExceededError as error:
        return str(error.message)
    finally:
        connection.close()
    return ""
