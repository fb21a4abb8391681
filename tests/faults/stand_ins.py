"""Stand-in servers for what a real S3 server does not do on demand: odd storage, refusals, silence."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, bytes]
MAX_BODY_BYTES = 1024 * 1024


def error_body(code: str, more: str = "") -> bytes:
    """Return an S3 error document; more is further elements."""
    return f"<Error><Code>{code}</Code><Message>a stand-in says so</Message>{more}</Error>".encode()


@contextmanager
def answering(
    answer: Callable[[str, str, bytes], Answer], *, clock_ahead_s: float = 0, headers: dict[str, str] | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Yield the endpoint of a server that answers by a function of method, path and body, and what it was asked.

    Its clock may differ from ours; headers come with every answer.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            return

        def _answer(self) -> None:
            body = self.rfile.read(min(int(self.headers.get("Content-Length") or 0), MAX_BODY_BYTES))
            asked.append(f"{self.command} {self.path}")
            status, content = answer(self.command, self.path, body)
            self.send_response_only(status)
            sent = {
                "Date": formatdate(time.time() + clock_ahead_s, usegmt=True),
                "ETag": '"made-up"',
                **(headers or {}),
            }
            for name, value in sent.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def silent() -> Iterator[str]:
    """Yield the endpoint of a server that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
