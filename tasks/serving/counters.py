"""The speculative-decoding counters of a vLLM server, and their difference over a measured window.

Source: vllm/v1/spec_decode/metrics.py of vLLM 0.32. A scrape of /metrics holds lines such as

    vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 4359.0
    vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 180.0
    vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from tasks.errors import EvidenceError
from tasks.serving.endpoint import PROBE_TIMEOUT_S, Endpoint
from tasks.serving.wire import to_error

LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
PREFIX = "vllm:spec_decode_num_"
DRAFTS = f"{PREFIX}drafts_total"
DRAFTED = f"{PREFIX}draft_tokens_total"
ACCEPTED = f"{PREFIX}accepted_tokens_total"
PER_POSITION = f"{PREFIX}accepted_tokens_per_pos_total"
CREATED = f"{PREFIX}drafts_created"
BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")


@dataclass(frozen=True)
class Counters:
    """One scrape, summed over the engines of the server."""

    num_drafts: int
    num_drafted: int
    num_accepted: int
    accepted_per_position: tuple[int, ...]
    num_busy: int
    """Requests running or waiting at the time."""
    created: tuple[float, ...]
    """When each engine's counters began; another stamp means a restart."""


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.splitlines():
        if found := LINE.match(line):
            yield found["name"], dict(LABEL.findall(found["labels"] or "")), float(found["value"])


def parse_counters(text: str) -> Counters:
    """Return the counters in the text of a scrape; names are matched exactly, absent ones are 0."""
    totals: dict[str, float] = {}
    positions: dict[int, float] = {}
    created = []
    for name, labels, value in _samples(text):
        if name == PER_POSITION:
            position = int(labels["position"])
            positions[position] = positions.get(position, 0.0) + value
        elif name == CREATED:
            created.append(value)
        else:
            totals[name] = totals.get(name, 0.0) + value
    return Counters(
        num_drafts=int(totals.get(DRAFTS, 0)),
        num_drafted=int(totals.get(DRAFTED, 0)),
        num_accepted=int(totals.get(ACCEPTED, 0)),
        accepted_per_position=tuple(int(positions[position]) for position in sorted(positions)),
        num_busy=int(sum(totals.get(name, 0) for name in BUSY)),
        created=tuple(sorted(created)),
    )


def scrape(endpoint: Endpoint) -> Counters:
    """Return the server's counters now. Raises RequestUnanswered or RequestRejected."""
    url = f"{endpoint.root_url}/metrics"
    try:
        answer = httpx.get(url, timeout=PROBE_TIMEOUT_S, trust_env=False)
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise to_error(error, f"GET {url}") from error
    return parse_counters(answer.text)


def _require_comparable(before: Counters, after: Counters) -> None:
    if before.num_busy or after.num_busy:
        raise EvidenceError(
            f"the server was busy at an end of the measured window ({before.num_busy} and {after.num_busy} requests): "
            "its counters hold somebody else's work. Measure on a server that nobody else uses."
        )
    pairs = list(zip(_values(before), _values(after), strict=False))
    has_shrunk = any(later < earlier for earlier, later in pairs) or len(_values(after)) < len(_values(before))
    if has_shrunk or before.created != after.created:
        raise EvidenceError(f"the server's counters began anew inside the measured window: {before}, then {after}")


def _values(counters: Counters) -> tuple[int, ...]:
    return (counters.num_drafts, counters.num_drafted, counters.num_accepted, *counters.accepted_per_position)


def difference(before: Counters, after: Counters) -> Counters:
    """Return what was counted between two scrapes, every client of the server included.

    Raises EvidenceError: busy at either end, a restart in between, or not one draft in between.
    """
    _require_comparable(before, after)
    width = len(after.accepted_per_position)
    earlier = (*before.accepted_per_position, *(0 for _ in range(width)))[:width]
    delta = Counters(
        num_drafts=after.num_drafts - before.num_drafts,
        num_drafted=after.num_drafted - before.num_drafted,
        num_accepted=after.num_accepted - before.num_accepted,
        accepted_per_position=tuple(b - a for a, b in zip(earlier, after.accepted_per_position, strict=True)),
        num_busy=0,
        created=after.created,
    )
    if delta.num_drafts == 0:
        raise EvidenceError("the server drafted nothing inside the measured window: was it started with a draft?")
    return delta
