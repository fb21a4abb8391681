"""Guards the reading and differencing of vLLM's counters, and the windows that are refused."""

from dataclasses import replace

import pytest

from tasks.errors import EvidenceError, RequestRejected
from tasks.serving.counters import Counters, difference, parse_counters, scrape
from tests.unit.test_serving_client import StandIn

SCRAPE = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a\\"},b"} 4359.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 1.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 13077.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 186.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 6.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 180.0
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",model_name="m",position="0"} 1.7e+09
vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
process_start_time_seconds 1.7e+09
"""
BEFORE = Counters(10, 30, 5, (4, 1), 0, (1.0,))
AFTER = Counters(30, 90, 12, (9, 2, 1), 0, (1.0,))


def test_a_scrape_is_summed_over_engines_by_exact_name() -> None:
    assert parse_counters(SCRAPE) == Counters(4360, 13077, 186, (180, 6), 3, (1.7e9,))
    assert parse_counters("") == Counters(0, 0, 0, (), 0, ())


def test_the_difference_is_per_counter() -> None:
    assert difference(BEFORE, AFTER) == Counters(20, 60, 7, (5, 1, 1), 0, (1.0,))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (replace(BEFORE, num_busy=1), AFTER, "busy at an end"),
        (BEFORE, replace(AFTER, num_busy=1), "busy at an end"),
        (AFTER, BEFORE, "began anew"),
        (BEFORE, replace(AFTER, accepted_per_position=(3, 2, 1)), "began anew"),
        (BEFORE, replace(AFTER, created=(2.0,)), "began anew"),
        (BEFORE, BEFORE, "drafted nothing"),
    ],
)
def test_a_window_that_says_nothing_is_refused(before: Counters, after: Counters, message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        difference(before, after)


def test_a_server_is_scraped_at_its_root() -> None:
    with StandIn(paths={"/metrics": (200, SCRAPE)}) as server:
        assert scrape(server.endpoint()).num_drafts == 4360
    with StandIn() as server, pytest.raises(RequestRejected, match="/metrics was answered with 404"):
        scrape(server.endpoint())
