"""Guards the client: what it sends, how it reads answers, and which refusals it tries again.

StandIn is a real server on loopback that answers from a script; the other tests of this room use it too.
"""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, TypeVar

import pytest

from tasks.errors import EvidenceError, RequestRejected, RequestUnanswered, ServerDied, ServerError
from tasks.serving.answer import SpecCounts
from tasks.serving.client import Sampling, TargetClient
from tasks.serving.endpoint import Endpoint
from tasks.serving.server import LOOPBACK

T = TypeVar("T")
CUT = "cut"  # headers, half a body, then the end of the connection
DROP = "drop"  # the end of the connection, nothing else
HANG = "hang"  # no answer before the stand-in is closed
CHAT = {
    "prompt_token_ids": [1, 2],
    "choices": [{"message": {"content": "Hi"}, "token_ids": [5, 6], "finish_reason": "stop"}],
}
COMPLETION = {"choices": [{"text": "Hi", "prompt_token_ids": [1, 2], "token_ids": [5], "finish_reason": "length"}]}
SPEC = {
    "num_spec_steps": 9,
    "num_accepted_draft_tokens": 7,
    "num_draft_tokens": 27,
    "acceptance_histogram": [4, 3, 2, 0],
}


class StandIn:
    """A server that gives the scripted replies in turn, the last one for ever: (status, body), CUT, DROP or HANG."""

    def __init__(self, *replies: Any, paths: dict[str, Any] | None = None) -> None:
        """Answer GET by path, POST by the script."""
        self.replies, self.paths = list(replies), paths or {}
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.closing = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                outer.keys.append(self.headers["authorization"])
                self.reply(outer.replies.pop(0) if len(outer.replies) > 1 else outer.replies[0])

            def do_GET(self) -> None:
                outer.keys.append(self.headers["authorization"])
                self.reply(outer.paths.get(self.path, (404, "no such path")))

            def reply(self, reply: Any) -> None:
                self.close_connection = True
                if reply == HANG:
                    outer.closing.wait(30)
                if reply in (HANG, DROP):
                    return
                status, body = (200, "x" * 50) if reply == CUT else reply
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data) * (2 if reply == CUT else 1)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.base_url = f"http://{LOOPBACK}:{self.server.server_address[1]}/v1"

    def endpoint(self, require_alive: Callable[[], None] = lambda: None) -> Endpoint:
        """Return the endpoint that it stands in for."""
        return Endpoint(self.base_url, "m", "0.32.0", require_alive)

    def __enter__(self) -> Self:
        """Begin to answer."""
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        """End every connection and thread."""
        self.closing.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def ask(endpoint: Endpoint, call: Callable[[TargetClient], Awaitable[T]], **options: Any) -> T:
    async def run() -> T:
        async with TargetClient(endpoint, 4, options.pop("timeout_s", 10.0), first_wait_s=0.01, **options) as client:
            return await call(client)

    return asyncio.run(run())


def chat(client: TargetClient) -> Awaitable[Any]:
    return client.chat([{"role": "user", "content": "Hello"}], Sampling(8))


def test_a_chat_request_and_its_answer_are_whole() -> None:
    with StandIn((200, {**CHAT, "metrics": {"speculative_decoding": SPEC}})) as server:
        answer = ask(server.endpoint(), chat)
    assert server.requests == [
        {
            **{"model": "m", "messages": [{"role": "user", "content": "Hello"}], "return_token_ids": True},
            **{"max_tokens": 8, "temperature": 0.0, "top_p": 1.0, "seed": 0},
        }
    ]
    assert (answer.text, answer.prompt_token_ids, answer.token_ids, answer.finish_reason) == (
        "Hi",
        (1, 2),
        (5, 6),
        "stop",
    )
    assert answer.spec == SpecCounts(9, 7, 27, (4, 3, 2, 0))
    assert 0 < answer.latency_s < 10


def test_a_completion_takes_token_ids_as_they_are() -> None:
    with StandIn((200, COMPLETION)) as server:
        answer = ask(server.endpoint(), lambda c: c.complete([1, 2], Sampling(1, temperature=0.5, ignore_eos=True)))
    assert (server.requests[0]["prompt"], server.requests[0]["ignore_eos"]) == ([1, 2], True)
    assert (answer.prompt_token_ids, answer.token_ids, answer.spec) == ((1, 2), (5,), None)


@pytest.mark.parametrize("reply", [(503, "busy"), (429, "slow down"), (408, ""), (409, ""), (425, ""), CUT, DROP])
def test_a_transient_refusal_is_tried_again(reply: Any) -> None:
    with StandIn(reply, reply, (200, CHAT)) as server:
        assert ask(server.endpoint(), chat).text == "Hi"
        assert len(server.requests) == 3


@pytest.mark.parametrize("reply", [(500, "boom"), CUT, DROP])
def test_tries_are_bounded(reply: Any) -> None:
    with StandIn(reply) as server:
        with pytest.raises(RequestUnanswered, match="chat/completions"):
            ask(server.endpoint(), chat, num_tries=3)
        assert len(server.requests) == 3


def test_a_server_that_hangs_is_a_timeout() -> None:
    with StandIn(HANG) as server, pytest.raises(RequestUnanswered, match="ReadTimeout"):
        ask(server.endpoint(), chat, timeout_s=0.2, num_tries=1)


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_wrong_request_is_not_tried_again(status: int) -> None:
    with StandIn((status, "max_tokens is too large")) as server:
        with pytest.raises(RequestRejected, match=f"{status}: max_tokens is too large"):
            ask(server.endpoint(), chat)
        assert len(server.requests) == 1


def test_a_dead_server_is_not_tried_again() -> None:
    def dead() -> None:
        raise ServerDied("the server ended")

    with StandIn(DROP) as server:
        with pytest.raises(ServerDied, match="the server ended"):
            ask(server.endpoint(dead), chat)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        "<html>a gateway</html>",
        [1],
        {},
        {"choices": []},
        {"choices": [{"text": "x"}]},
        {**CHAT, "prompt_token_ids": None},
    ],
)
def test_an_answer_that_vllm_would_not_give_is_permanent(body: Any) -> None:
    with StandIn((200, body)) as server:
        with pytest.raises(ServerError) as caught:
            ask(server.endpoint(), chat)
        assert not isinstance(caught.value, RequestUnanswered)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "block",
    [
        None,
        7,
        {},
        {**SPEC, "acceptance_histogram": None},
        {**SPEC, "num_spec_steps": "9"},
        {**SPEC, "num_spec_steps": 10},
        {**SPEC, "num_accepted_draft_tokens": 8},
    ],
)
def test_unusable_per_request_figures_are_no_figures(block: Any) -> None:
    with StandIn((200, {**CHAT, "metrics": {"speculative_decoding": block}})) as server:
        assert ask(server.endpoint(), chat).spec is None


def test_a_lone_surrogate_is_reported_with_its_place() -> None:
    with StandIn((200, CHAT)) as server:
        with pytest.raises(RequestRejected, match=r"prompt\[1\].content, character 2 is half of a surrogate pair"):
            messages = [{"role": "system", "content": "\U0001f600"}, {"role": "user", "content": "ab\ud83d"}]
            ask(server.endpoint(), lambda c: c.chat(messages, Sampling(1)))
        assert server.requests == []
    body = {**CHAT, "choices": [{"message": {"content": "\ud83d"}, "token_ids": [1], "finish_reason": "stop"}]}
    with StandIn((200, body)) as server, pytest.raises(EvidenceError, match="text, character 0"):
        ask(server.endpoint(), chat)


def test_extract_returns_the_path_and_compares_the_tokens() -> None:
    path = {"kv_transfer_params": {"hidden_states_path": "/hs/1.safetensors"}}
    with StandIn((200, {**COMPLETION, **path})) as server:
        assert str(ask(server.endpoint(), lambda c: c.extract([1, 2]))) == "/hs/1.safetensors"
        assert (server.requests[0]["prompt"], server.requests[0]["max_tokens"]) == ([1, 2], 1)
        with pytest.raises(EvidenceError, match="2 instead of 3, first different at position 1"):
            ask(server.endpoint(), lambda c: c.extract([1, 9, 2]))
    with StandIn((200, COMPLETION)) as server, pytest.raises(ServerError, match="not run in extraction mode"):
        ask(server.endpoint(), lambda c: c.extract([1, 2]))


def test_no_more_requests_are_in_flight_than_allowed() -> None:
    async def run(endpoint: Endpoint) -> int:
        most = 0
        async with TargetClient(endpoint, 2, 10.0) as client:
            tasks = [asyncio.create_task(client.complete([1, 2], Sampling(1))) for _ in range(20)]
            while not all(task.done() for task in tasks):
                most = max(most, len(server.requests) - sum(task.done() for task in tasks))
                await asyncio.sleep(0)
        return most

    with StandIn((200, COMPLETION)) as server:
        assert asyncio.run(run(server.endpoint())) <= 2
        assert len(server.requests) == 20
