"""A back-up of a namespace of this machine, whether it runs or not.

What it is: a user who can read the data folder can read its keys; with them the process that has it open is asked for a back-up; if
none has, the store is opened here. What it is not: for a namespace on another machine; run it there.

Invariants:
    I1. The requested folder is whole and on disk when it has its name.
    I2. The intermediate copy of the namespace is removed by its next back-up if this process is killed, or has not waited for it.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from contextlib import suppress
from pathlib import Path

from isthmus.broker.backup import PARTIAL, back_up_stopped, copy_folder, locked
from isthmus.broker.running import read_running
from isthmus.broker.security.keyring import Keyring
from isthmus.broker.zone import back_up_zoned, known_zones
from isthmus.clock import SystemClock
from isthmus.errors import InvalidArgumentError, IsthmusError, StoreError
from isthmus.operations.server.target import Target
from isthmus.transport import Endpoint, SharedKeyCredential

__all__ = ["make_backup"]

_TIMEOUT_SECONDS = 600.0


def make_backup(data: Path, folder: Path) -> bool:
    """Make a back-up; returns whether a running process made it.

    Raises:
        InvalidArgumentError: the folder exists already, or cannot be made.
        StoreError: there is no namespace, or the disk refused.
        IsthmusError: the process that has the folder open does not answer.
    """
    if folder.exists():
        raise InvalidArgumentError(f"'{folder}' exists already; name a folder that does not")
    try:
        if known_zones(data):
            back_up_zoned(data, folder)
        else:
            back_up_stopped(data, folder)
    except StoreError as error:
        if "in use" not in str(error):
            raise
    else:
        return False
    made = Path(_ask(data))
    try:
        with locked(made):
            copy_folder(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
        with suppress(OSError):
            made.parent.rmdir()
    return True


def _ask(data: Path) -> str:
    running = read_running(data)
    if running is None:
        raise StoreError(f"A process has '{data}' open and has not recorded its address.")
    keyring = Keyring.open(data / "keys.json", SystemClock())
    rule = next((rule for rule in keyring.rules if "Manage" in rule.rights), None)
    if rule is None:
        raise InvalidArgumentError(f"no key of '{data}' has Manage")
    host, port = running["host"], running["ports"]["http"]
    shown = f"[{host}]" if ":" in host else host
    endpoint = Endpoint(
        host,
        port,
        tls=not running["plain"],
        authority=f"{shown}:{port}",
        credential=SharedKeyCredential(rule.key_name, rule.primary_key),
        ca_file=running.get("ca_file", ""),
    )
    root = f"{'http' if running['plain'] else 'https'}://{shown}:{port}"
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.{uuid.uuid4().hex[:8]}{PARTIAL}"
    answer = Target(endpoint, root).ask("POST", f"/$isthmus/backup?name={name}", _TIMEOUT_SECONDS)
    made = json.loads(answer).get("folder")
    if not isinstance(made, str):
        raise IsthmusError("the namespace made a back-up and did not return its path")
    return made
