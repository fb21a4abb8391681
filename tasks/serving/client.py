"""The calls that we make to a vLLM server, as an asynchronous client.

Sent to /v1/chat/completions, for example (return_token_ids is vLLM's own field):

    {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0.0,
     "top_p": 1.0, "seed": 0, "return_token_ids": true}
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential, wait_random

from tasks.errors import RequestUnanswered, ServerError
from tasks.serving.answer import Answer, parse_answer, require_encodable, require_ids
from tasks.serving.endpoint import Endpoint
from tasks.serving.wire import read_json, to_error

NUM_TRIES = 6
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 20.0
CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Sampling:
    """How an answer is sampled; temperature 0 is greedy."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the request's fields, by vLLM's names."""
        fields: dict[str, Any] = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
        }
        return {**fields, "ignore_eos": True} if self.ignore_eos else fields


class TargetClient:
    """Asks one server. Use as an async context manager; at most `concurrency` requests are in flight.

    Transient refusals are tried again with exponential waits and jitter, NUM_TRIES times in all; then, and for
    everything else, the error is raised: RequestUnanswered, RequestRejected, ServerDied, ServerError.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        concurrency: int,
        timeout_s: float,
        *,
        num_tries: int = NUM_TRIES,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        """Prepare a client; timeout_s: longest wait for one answer."""
        self.endpoint = endpoint
        self._slots = asyncio.Semaphore(concurrency)
        self._num_tries = num_tries
        self._first_wait_s = first_wait_s
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
            trust_env=False,
            headers=endpoint.headers,
        )

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def chat(
        self, messages: Sequence[dict[str, Any]], sampling: Sampling, tools: Sequence[dict[str, Any]] = ()
    ) -> Answer:
        """Return the answer to a conversation; the server renders it with the model's chat template.

        tools: what the model may call; it is told of them and may name one, and nothing is called.
        """
        require_encodable(messages)
        offered = {"tools": list(tools)} if tools else {}
        return await self._ask("chat/completions", {"messages": list(messages), **offered, **sampling.fields()})

    async def complete(self, prompt: str | Sequence[int], sampling: Sampling) -> Answer:
        """Return the continuation of a text or of token ids, which are used as they are."""
        require_encodable(prompt)
        body = prompt if isinstance(prompt, str) else list(prompt)
        return await self._ask("completions", {"prompt": body, **sampling.fields()})

    async def extract(self, token_ids: Sequence[int]) -> Path:
        """Return where the server (mode Extract) writes the hidden states of the tokens; see handover.wait_complete.

        Raises EvidenceError: the server did not use exactly these tokens.
        """
        body, _ = await self._post("completions", {"prompt": list(token_ids), **Sampling(max_tokens=1).fields()})
        require_ids(body, token_ids)
        transfer = body.get("kv_transfer_params")
        path = transfer.get("hidden_states_path") if isinstance(transfer, dict) else None
        if not isinstance(path, str):
            raise ServerError(
                f"{self.endpoint.base_url} names no hidden-states file in its answer "
                f"(kv_transfer_params: {transfer!r}): it does not run in extraction mode"
            )
        return Path(path)

    async def _ask(self, verb: str, fields: dict[str, Any]) -> Answer:
        body, latency_s = await self._post(verb, fields)
        return parse_answer(body, latency_s, self.endpoint.base_url)

    async def _post(self, verb: str, fields: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """Return the body of an answer and the seconds that the successful try took."""
        request = {"model": self.endpoint.model, **fields, "return_token_ids": True}
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._num_tries),
            wait=wait_exponential(self._first_wait_s, LONGEST_WAIT_S) + wait_random(0, self._first_wait_s),
            retry=retry_if_exception_type(RequestUnanswered),
            reraise=True,
        )
        async with self._slots:
            return await retrying(self._post_once, f"{self.endpoint.base_url}/{verb}", request)

    async def _post_once(self, url: str, request: dict[str, Any]) -> tuple[dict[str, Any], float]:
        started = time.monotonic()
        try:
            answer = await self._http.post(url, json=request)
            answer.raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self.endpoint.require_alive()
            raise to_error(error, f"POST {url}") from error
        return read_json(answer, f"POST {url}"), time.monotonic() - started
