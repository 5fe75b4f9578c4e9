"""A message that kills every worker that takes it is set aside; all others move, in order, and none is doubled.

One kills the sink's worker, another the reader's: a module that Python loads at its start makes them do so.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isthmus.amqp import section
from isthmus.bridge.lease.crash_search import SET_ASIDE_REASON
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.testing.federation import TOPIC, FederationProcess
from isthmus.topology.model import Endpoint
from isthmus.topology.route import routes
from isthmus.transport import Sender

pytestmark = pytest.mark.spark

SETTINGS = ("lock_duration: 5s", "duplicate_detection: 1h")
RUN = ("--json", "--retry-first", "1", "--retry-limit", "2", "--lease", "60")
BEFORE = 300
POISON = {"sink": b"kills the sink", "reader": b"kills the reader"}

SITE = """
import importlib.abc, importlib.util, os, signal, sys

def poison_sink(module):
    copy_all = module.MessageRewriter.copy_all
    def copied(self, data, offsets, now_ms):
        if b"kills the sink" in data:
            os.kill(os.getpid(), signal.SIGKILL)
        return copy_all(self, data, offsets, now_ms)
    module.MessageRewriter.copy_all = copied

def poison_reader(module):
    take = module._Pending.take
    def taken(self):
        runs = take(self)
        if any(b"kills the reader" in payload for run in runs for payload in run.payloads):
            os.kill(os.getpid(), signal.SIGKILL)
        return runs
    module._Pending.take = taken

POISONED = {
    "isthmus.connectors.servicebus.message.message_rewriter": poison_sink,
    "isthmus.bridge.spark.outflow": poison_reader,
}

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in POISONED:
            return None
        poison = POISONED.pop(name)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def executed(module):
            execute(module)
            poison(module)
        spec.loader.exec_module = executed
        return spec

sys.meta_path.insert(0, Finder())
"""


def test_a_message_that_kills_its_worker_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    with FederationProcess(tmp_path, ("ewr", "jfk"), SETTINGS) as federation:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(site), os.environ.get("PYTHONPATH", ""))))
        run = federation.run(*RUN)
        run.wait_phase(("waiting", "moving"))
        for kind in ("sink", "reader"):
            federation.publish("ewr", BEFORE, 200)
            publish_poison(federation, POISON[kind])
            federation.publish("ewr", BEFORE, 200)
        federation.wait_moved(480.0)
        route = next(route for route in routes(federation.federation) if route.source.alias == "ewr")
        dead = Endpoint("ewr", f"{route.source.entity}/$DeadLetterQueue")
        with NamespaceClients(federation.federation) as clients:
            found = clients.peek(dead)(0, 100)
        reasons = [
            section.decode_map(each, section.locate(each).application_properties)["DeadLetterReason"] for each in found
        ]
        assert reasons == [SET_ASIDE_REASON] * 2, run.log()[-3000:]
        assert [next(kind for kind, body in POISON.items() if body in each) for each in found] == ["sink", "reader"]
        result = federation.verify()
        assert not result.total("lost"), result.to_dict()
        assert not result.total("duplicated"), result.to_dict()
        assert not result.total("out_of_order"), result.to_dict()
        assert run.log().count("was dead-lettered: it killed") == 2
        assert run.end() == 0


def publish_poison(federation: FederationProcess, body: bytes) -> None:
    """One message among the numbered ones."""
    federation.published["ewr"] += 1
    number = federation.published["ewr"]
    message = section.encode_message(
        body,
        properties={"message_id": f"ewr-{number}"},
        application_properties={"publisher": "ewr", "number": number},
    )
    with NamespaceClients(federation.federation) as clients, clients.open(Endpoint("ewr", TOPIC)) as client:
        Sender(client, TOPIC).wait_ready().send_all([message])
