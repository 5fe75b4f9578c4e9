"""The service's relay clients for JavaScript, unmodified: hyco-ws and hyco-https, as listeners and as requesters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from harness.client.sdk_program import CACHE, PROGRAMS, Program, SdkError, install_packages
from isthmus.testing.namespace import NamespaceProcess, namespace

CONFIG = """
authorization_rules:
  service: {rights: [Listen]}
  caller: {rights: [Send]}
hybrid_connections: {echo: {}, api: {}, shop/api: {}}
"""


@pytest.fixture(scope="module")
def relay() -> Iterator[NamespaceProcess]:
    with namespace(config=CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def node(relay: NamespaceProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = CACHE / "relay"
    command = [str(install_packages(PROGRAMS / "relay", folder)), str(PROGRAMS / "relay" / "program.cjs")]
    environment = {
        "NODE_EXTRA_CA_CERTS": str(relay.ca_file),
        "NO_PROXY": "127.0.0.1",
        "NODE_PATH": str(folder / "node_modules"),
    }
    started = Program(command, environment, tmp_path_factory.mktemp("relay") / "log.txt")
    yield started
    started.close()


@pytest.fixture(scope="module")
def access(relay: NamespaceProcess) -> Any:
    """Where and with which key a client works."""
    rules = {rule["key_name"]: rule for rule in json.loads((relay.data / "keys.json").read_text())["rules"]}

    def make(rule: str, path: str) -> dict[str, str]:
        host = f"127.0.0.1:{relay.ports['tls']}"
        return {"host": host, "path": path, "rule": rule, "key": rules[rule]["primary_key"]}

    return make


def test_connections_of_hyco_ws(node: Program, access: Any) -> None:
    with node.open("listenWebSocket", **access("service", "echo")):
        said = node.call("talk", **access("caller", "echo"), texts=["a", "ä" * 1000], bytes=500_000)
    assert said == {"heard": ["a", "ä" * 1000, 500_000], "code": 4000, "reason": "as you wish"}


def test_requests_of_hyco_https(node: Program, access: Any) -> None:
    with node.open("listenRequests", **access("service", "api")):
        for method, path, size in (("GET", "api", 0), ("POST", "api/x?a=1", 10), ("PUT", "api/large-one", 200_000)):
            found = node.call("request", **access("caller", path), method=method, bytes=size)
            assert (found["status"], found["seen"]) == (200, "mine")
            assert json.loads(found["text"]) == {"method": method, "url": f"/{path}", "bytes": size}
        assert node.call("request", **access("caller", "api/large"), method="GET")["length"] == 300_000
        assert node.call("request", **access("caller", "api/large"), method="POST", bytes=100_000)["length"] == 300_000
        assert node.call("request", **access("caller", "api/pieces"), method="GET")["text"] == "one,two,three"
        assert node.call("request", **access("caller", "api/none"), method="DELETE")["status"] == 204
        # The channel that all of these went over is still open.
        head = node.call("request", **access("caller", "api"), method="HEAD")
        assert (head["status"], head["length"]) == (200, 0)
        together = [node.begin("request", **access("caller", f"api/{n}"), method="GET") for n in range(50)]
        assert sorted(json.loads(each.result(60)["text"])["url"] for each in together) == sorted(
            f"/api/{number}" for number in range(50)
        )


def test_refusals_as_these_clients_see_them(node: Program, access: Any) -> None:
    assert node.call("request", **access("caller", "shop/api"), method="GET")["status"] == 502
    assert node.call("request", **access("service", "shop/api"), method="GET")["status"] == 403
    with pytest.raises(SdkError, match="404"):
        node.call("talk", **access("caller", "echo"), texts=["a"])
    with pytest.raises(SdkError, match="403"):
        node.call("talk", **access("service", "echo"), texts=["a"])
