"""A small HTTP proxy that does one named fault to chosen requests between a client and an S3 server.

with fault_proxy("http://127.0.0.1:9000", lambda request: Fault("cut-answer", after=100)) as proxy:
    ... use proxy.endpoint; proxy.done counts the faults by name

cut-request   forward `after` bytes of the request's body, then drop both connections
lose-answer   carry the request out, then drop the connection instead of answering
cut-answer    send `after` bytes of the answer's body, then drop the connection
wrong-answer  flip one byte of the answer's body
wrong-request flip one byte of the request's body
stall         wait `seconds`, then carry the request out
answer        answer `status` and `code` without carrying anything out, from a clock that is `seconds` ahead
"""

import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from io import BufferedIOBase
from urllib.parse import urlsplit

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
SOCKET_S = 20.0


@dataclass(frozen=True)
class Fault:
    """What to do to one request."""

    name: str
    after: int = 0
    seconds: float = 0.0
    status: int = 503
    code: str = "SlowDown"


@dataclass(frozen=True)
class Request:
    """What a plan may look at to choose a fault."""

    method: str
    path: str
    body_bytes: int


Plan = Callable[[Request], Fault | None]


class _Dropped(Exception):
    pass


@dataclass
class _Message:
    head: list[bytes]
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        for line in self.head[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name:
                return value.strip()
        return None

    def raw(self, body: bytes | None = None) -> bytes:
        return b"\r\n".join(self.head) + b"\r\n\r\n" + (self.body if body is None else body)


def _read_head(stream: BufferedIOBase) -> list[bytes]:
    lines: list[bytes] = []
    total = 0
    while line := stream.readline(MAX_HEAD_BYTES):
        total += len(line)
        if line in (b"\r\n", b"\n"):
            return lines
        lines.append(line.rstrip(b"\r\n"))
        if total > MAX_HEAD_BYTES:
            break
    raise _Dropped


def _read_body(stream: BufferedIOBase, length: bytes | None) -> bytes:
    size = int(length or 0)
    if size > MAX_BODY_BYTES:
        raise _Dropped
    body = stream.read(size)
    if len(body) != size:
        raise _Dropped
    return body


def _flipped(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 0x20]) + body[middle + 1 :] if body else body


class FaultProxy(socketserver.ThreadingTCPServer):
    """Listens on a free loopback port; counts what it did."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, upstream: str, plan: Plan) -> None:
        """Stand before one server."""
        url = urlsplit(upstream)
        assert url.hostname and url.port
        self.upstream = (url.hostname, url.port)
        self.plan = plan
        self.done: Counter[str] = Counter()
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def endpoint(self) -> str:
        """Return the URL that clients use."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def choose(self, request: Request) -> Fault | None:
        """Return the fault of a request, counted; plans run one at a time."""
        with self.lock:
            fault = self.plan(request)
            if fault is not None:
                self.done[fault.name if fault.name != "answer" else f"answer {fault.status} {fault.code}"] += 1
            return fault


class _Handler(socketserver.StreamRequestHandler):
    server: FaultProxy
    timeout = SOCKET_S

    def handle(self) -> None:
        try:
            while self._one():
                pass
        except (_Dropped, OSError):
            return

    def _one(self) -> bool:
        head = _read_head(self.rfile)
        method, path, _ = head[0].decode("latin-1").split(" ", 2)
        request = _Message(head, b"")
        length = request.header(b"content-length")
        fault = self.server.choose(Request(method, path, int(length or 0)))
        if fault is not None and fault.name == "answer":
            self._answer(fault, method)
            return False
        if request.header(b"expect") is not None:
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.body = _read_body(self.rfile, length)
        request.head = [line for line in head if not line.lower().startswith((b"expect:", b"connection:"))]
        request.head.append(b"Connection: close")
        return self._forward(request, method, fault or Fault("none"))

    def _forward(self, request: _Message, method: str, fault: Fault) -> bool:
        if fault.name == "stall":
            time.sleep(fault.seconds)
        with socket.create_connection(self.server.upstream, SOCKET_S) as upstream, upstream.makefile("rb") as stream:
            if fault.name == "cut-request":
                upstream.sendall(request.raw(request.body[: fault.after]))
                raise _Dropped
            upstream.sendall(request.raw(_flipped(request.body) if fault.name == "wrong-request" else None))
            answer = _Message(_read_head(stream), b"")
            if method != "HEAD":
                length = answer.header(b"content-length")
                answer.body = stream.read() if length is None else _read_body(stream, length)
        return self._relay(answer, fault)

    def _relay(self, answer: _Message, fault: Fault) -> bool:
        if fault.name == "lose-answer":
            raise _Dropped
        if fault.name == "cut-answer":
            self.wfile.write(answer.raw(answer.body[: min(fault.after, max(0, len(answer.body) - 1))]))
            raise _Dropped
        if fault.name == "wrong-answer":
            answer.body = _flipped(answer.body)
        self.wfile.write(answer.raw())
        return (answer.header(b"connection") or b"").lower() != b"close"

    def _answer(self, fault: Fault, method: str) -> None:
        body = f"<Error><Code>{fault.code}</Code><Message>provoked</Message></Error>".encode()
        date = formatdate(time.time() + fault.seconds, usegmt=True)
        head = [f"HTTP/1.1 {fault.status} Provoked", f"Date: {date}", "Content-Type: application/xml"]
        head += ["Connection: close", f"Content-Length: {len(body)}", "", ""]
        self.wfile.write("\r\n".join(head).encode() + (b"" if method == "HEAD" else body))


@contextmanager
def fault_proxy(upstream: str, plan: Plan) -> Iterator[FaultProxy]:
    """Yield a running proxy; its port is closed afterwards."""
    with FaultProxy(upstream, plan) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
