"""Two namespaces and a pair of them, for tests: the file, the verbs of `isthmus pair` as processes, and the alias's connection string."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

from isthmus.cli.app import main
from isthmus.connectors.servicebus.connect import endpoint_of, open_client
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.testing.port import free_port
from isthmus.transport import Client

__all__ = ["Paired", "paired"]

_COMMAND = "from isthmus.cli.app import main; main()"


class Paired:
    """A pair `contoso` of the namespaces `ewr` and `jfk`.

    Attributes:
        members: the namespaces by alias.
        connection_string: of the alias; it holds a key that both members have.
    """

    def __init__(self, folder: Path, members: dict[str, NamespaceProcess], key: str) -> None:
        self.members = members
        self._key = key
        self.folder = folder
        self.port = free_port()
        self.file = folder / "isthmus.yaml"
        namespaces = "".join(
            f"  {alias}: {{connection: env:{alias.upper()}, ca_file: {served.ca_file}}}\n"
            for alias, served in members.items()
        )
        self.file.write_text(
            f"isthmus: 1\nnamespaces:\n{namespaces}"
            f"pairs:\n  contoso: {{primary: ewr, secondary: jfk, listen: '127.0.0.1:{self.port}', interval: 500ms}}\n"
        )
        self.environment = {alias.upper(): served.connection_string for alias, served in members.items()}
        self.connection_string = f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName=app;SharedAccessKey={key};UseDevelopmentEmulator=true"
        self._running: subprocess.Popen[str] | None = None
        self.log_file = folder / "pair.log"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A verb of `isthmus pair` as a process."""
        verb, *rest = arguments
        command = [sys.executable, "-c", _COMMAND, "pair", verb, "contoso", str(self.file), *rest]
        environment = {**os.environ, **self.environment}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def verb(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """What a verb prints with `--json` in this process, once it has ended with this exit code."""
        verb, *rest = arguments
        output = io.StringIO()
        with redirect_stdout(output), patch.dict(os.environ, self.environment), pytest.raises(SystemExit) as ended:
            main(["pair", verb, "contoso", str(self.file), *rest, "--json"])
        assert (ended.value.code or 0) == code, (arguments, ended.value.code, output.getvalue())
        found: dict[str, Any] = json.loads(output.getvalue().strip().splitlines()[-1])
        return found

    def run(self) -> None:
        """Start `isthmus pair run`; returns once the alias listens."""
        with self.log_file.open("a") as log:
            command = [sys.executable, "-c", _COMMAND, "pair", "run", "contoso", str(self.file), "--json"]
            self._running = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **self.environment}
            )
        assert self._running.stdout is not None
        line = self._running.stdout.readline()
        assert json.loads(line)["listen"] == f"127.0.0.1:{self.port}", (line, self.log_file.read_text())

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End `isthmus pair run`."""
        process, self._running = self._running, None
        if process is not None:
            process.send_signal(number)
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()

    def administration(self, alias: str) -> ServiceBusAdministrationClient:
        """The administration of one member."""
        served = self.members[alias]
        return ServiceBusAdministrationClient.from_connection_string(
            served.admin_connection_string, connection_verify=str(served.ca_file)
        )

    def client(self, alias: str = "", **options: Any) -> ServiceBusClient:
        """A client of one member, or of the alias."""
        text = self.members[alias].connection_string if alias else self.connection_string
        return ServiceBusClient.from_connection_string(text, **options)

    def connected(self, alias: str, entity: str, *, is_application: bool = False) -> Client:
        """A connection of our own to a member, with all rights or those of the application."""
        text = self.members[alias].connection_string
        if is_application:
            text = re.sub("SharedAccessKeyName=[^;]*", "SharedAccessKeyName=app", text)
            text = re.sub("SharedAccessKey=[^;]*", f"SharedAccessKey={self._key}", text)
        with patch.dict(os.environ, {"PAIRED_MEMBER": text}):
            options = SourceOptions.read({"connection": "env:PAIRED_MEMBER", "entity": entity})
            return open_client(endpoint_of(options), entity, "test", 10.0)

    @property
    def state_file(self) -> Path:
        """The state file."""
        return self.folder / ".isthmus/isthmus/pairs/contoso/state.json"

    @property
    def is_created(self) -> bool:
        """Whether there is a state."""
        return self.state_file.exists()

    @property
    def state(self) -> dict[str, Any]:
        """The contents of the state file."""
        found: dict[str, Any] = json.loads(self.state_file.read_text())
        return found


@contextmanager
def paired(folder: Path, config: str = "") -> Iterator[Paired]:
    """Both namespaces, as long as the ``with`` block lasts. The pair is not created yet.

    Args:
        folder: for everything.
        config: entities that `ewr` is served with.
    """
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    key_file = folder / "app.key"
    key_file.write_text(key)
    rules = f"authorization_rules:\n  app: {{rights: [Send, Listen], primary_key: 'file:{key_file}'}}\n"
    with ExitStack() as stack:
        members = {}
        for alias, text in (("ewr", rules + config), ("jfk", rules)):
            (folder / alias).mkdir()
            members[alias] = stack.enter_context(namespace(folder / alias, config=text))
        made = Paired(folder, members, key)
        stack.callback(made.stop, signal.SIGKILL)
        yield made
