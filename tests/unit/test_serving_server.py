"""Guards the life of a managed server: ready, dead and too late told apart, and nothing left behind."""

import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import RequestUnanswered, ServerDied, ServerError, ServerNotReady, TransientError
from tasks.process.child import Command
from tasks.process.ports import free_port, is_port_taken
from tasks.serving.server import managed_server

# Answers like vLLM after DELAY seconds; GET /end makes it end with status 3.
SERVER = """
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
print("loading", flush=True)
time.sleep(float(sys.argv[1]))
answers = {"/health": {}, "/version": {"version": "9.9"}, "/v1/models": {"data": [{"id": "m"}]}}
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/end":
            print("out of memory", flush=True)
            os._exit(3)
        body = json.dumps(answers[self.path]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def serve(folder: Path, code: str = SERVER, delay_s: float = 0.0, **options: Any) -> Any:
    command = Command((sys.executable, "-c", code, str(delay_s), "--served-model-name", "m"))
    chosen: dict[str, Any] = {"start_deadline_s": 30.0, **options}
    return managed_server(command, log_path=folder / "server.log", run_folder=folder, **chosen)


def port_of(url: str) -> int:
    return int(url.removesuffix("/v1").rsplit(":", 1)[1])


def test_a_ready_server_is_yielded_and_stopped(tmp_path: Path) -> None:
    waits: list[float] = []
    with serve(tmp_path, delay_s=0.6, on_wait=waits.append) as endpoint:
        assert (endpoint.model, endpoint.version) == ("m", "9.9")
        assert endpoint.base_url.startswith("http://127.0.0.1:")
        endpoint.require_alive()
        assert is_port_taken(port_of(endpoint.base_url))
    assert waits == sorted(waits) and len(waits) >= 2
    assert not is_port_taken(port_of(endpoint.base_url))
    assert list((tmp_path / "running").iterdir()) == []


def test_a_start_that_ends_with_a_status_is_permanent_and_quick(tmp_path: Path) -> None:
    started = time.monotonic()
    with (
        pytest.raises(ServerError, match=r"(?s)ended while starting with exit status 2.*no such flag") as caught,
        serve(tmp_path, "import sys; sys.exit(print('no such flag') or 2)"),
    ):
        pytest.fail("it is not ready")
    assert not isinstance(caught.value, TransientError)
    assert time.monotonic() - started < 6


def test_the_cause_is_shown_however_much_follows(tmp_path: Path) -> None:
    code = """
at = "(Worker pid=1) ERROR 11-29 22:37:32 [executor.py:9] "
print(at + "Traceback (most recent call last):")
print(at + "ValidationError: 1 error for Config\\n  Value error, no such architecture")
for i in range(60):
    print(at + '  File "x.py", line 1, in run\\n' + at + "    return func()")
    print('  File "y.py", line 2, in f\\n    ^^^^')
print("nanobind: leaked 100 types!")
for i in range(100):
    print(" - leaked type", i)
exit(1)
"""
    with pytest.raises(ServerError) as caught, serve(tmp_path, code):
        pytest.fail("it is not ready")
    shown = str(caught.value).split("the last lines are\n")[1].splitlines()
    assert [line.rpartition("] ")[2] for line in shown] == [
        "Traceback (most recent call last):",
        "ValidationError: 1 error for Config",
        "  Value error, no such architecture",
    ]


def test_a_start_that_is_killed_may_pass(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerDied, match="ended while starting with signal 9"),
        serve(tmp_path, "import os; os.kill(os.getpid(), 9)"),
    ):
        pytest.fail("it is not ready")


def test_a_server_that_never_answers_is_too_late(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerNotReady, match=r"(?s)within 3 s.*DRAFTWORKS_SERVER_START_S.*loading"),
        serve(tmp_path, delay_s=60, start_deadline_s=3),
    ):
        pytest.fail("it is not ready")
    assert list((tmp_path / "running").iterdir()) == []


def test_a_server_that_ends_while_needed_is_noticed_within_a_second(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerDied, match=r"(?s)while it was needed with exit status 3.*out of memory"),
        serve(tmp_path) as endpoint,
    ):
        with socket.create_connection(("127.0.0.1", port_of(endpoint.base_url))) as line:
            line.sendall(b"GET /end HTTP/1.0\r\n\r\n")
            line.recv(100)
        ended = time.monotonic()
        while time.monotonic() - ended < 2.0:  # a second, and as much for a busy machine
            endpoint.require_alive()
            time.sleep(0.02)
        pytest.fail("its end was not noticed")


def test_a_lost_request_is_explained_by_the_end_of_the_server(tmp_path: Path) -> None:
    with pytest.raises(ServerDied, match="out of memory"), serve(tmp_path) as endpoint:
        with socket.create_connection(("127.0.0.1", port_of(endpoint.base_url))) as line:
            line.sendall(b"GET /end HTTP/1.0\r\n\r\n")
            line.recv(100)
        time.sleep(1.5)
        raise RequestUnanswered("POST got no answer")


def test_an_error_of_the_block_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(RequestUnanswered, match="somebody else"), serve(tmp_path):
        raise RequestUnanswered("somebody else")


def test_a_wanted_port_that_is_taken_is_permanent(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ServerError, match=f"port {port} on 127.0.0.1 is taken") as caught,
            serve(tmp_path, port=port),
        ):
            pytest.fail("it is not ready")
    assert type(caught.value) is ServerError


def test_a_wanted_port_is_used(tmp_path: Path) -> None:
    port = free_port()
    with serve(tmp_path, port=port) as endpoint:
        assert endpoint.base_url == f"http://127.0.0.1:{port}/v1"


def test_another_served_name_is_noticed(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerError, match="serves other, expected m"),
        serve(tmp_path, SERVER.replace('"id": "m"', '"id": "other"')),
    ):
        pytest.fail("it is not the server that was started")
