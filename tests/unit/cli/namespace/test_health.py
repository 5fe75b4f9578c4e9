"""`isthmus namespace health`: the answers for health checks of containers and units."""

from __future__ import annotations

import http.server
import json
import threading
from contextlib import contextmanager

import pytest

from isthmus.broker.running import write_running
from isthmus.cli.app import main
from isthmus.testing.namespace import namespace


@contextmanager
def answering(status, body):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def ask(tmp_path, capsys):
    def run(*given, data=tmp_path):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["namespace", "health", "--data", str(data), *given, "--json"])
        return ended.value.code or 0, json.loads(capsys.readouterr().out)

    return run


def test_a_namespace_that_serves(ask):
    with namespace() as running:
        assert ask(data=running.data) == (0, {"status": "healthy", "reason": ""})
        running.stop()
        assert ask(data=running.data)[0] == 1
        running.start()
        running.kill()  # its status file remains
        code, reported = ask("--wait", "0.3", data=running.data)
        assert (code, reported["status"]) == (1, "absent")
        assert "does not answer" in reported["reason"]


@pytest.mark.parametrize(
    ("status", "body", "code", "reported"),
    [
        (200, b'{"status": "healthy"}', 0, {"status": "healthy", "reason": ""}),
        (
            200,
            b'{"status": "healthy", "partition_stores_down": [1, 3]}',
            0,
            {"status": "healthy", "reason": "", "partition_stores_down": [1, 3]},
        ),
        (
            200,
            b'{"status": "healthy", "hybrid_connections_without_listener": 2}',
            0,
            {"status": "healthy", "reason": "", "without_listener": 2},
        ),
        (503, b'{"status": "unhealthy", "reason": "no room"}', 1, {"status": "unhealthy", "reason": "no room"}),
        (200, b"<html>", 1, None),
        (200, b"[]", 1, None),
        (200, b'{"status": "healthy", "partition_stores_down": "all"}', 1, None),
    ],
)
def test_what_is_reported_decides(ask, tmp_path, status, body, code, reported):
    with answering(status, body) as port:
        write_running(tmp_path, {"host": "127.0.0.1", "ports": {"http": port}, "plain": True})
        found = ask()
        assert found[0] == code
        assert found[1] == (
            reported or {"status": "absent", "reason": f"127.0.0.1:{port} does not answer like a namespace."}
        )


def test_a_folder_that_is_not_served(ask, tmp_path):
    assert ask() == (1, {"status": "absent", "reason": f"No process is recorded as serving from '{tmp_path}'."})
