"""Guards the pages: figures in human units, no NaN, foreign text that stays text, links that open, and a size limit."""

import re

import pytest
from rich.console import Console

from tasks.bench.measurement import Acceptance, Arm, ArmName, Measurement, PromptSetIdentity, Speed
from tasks.checks.verdict import CheckResult, conclude
from tasks.errors import RecipeError
from tasks.pages.pages import run_page, stage_page
from tasks.pages.parts import (
    MAX_PAGE_BYTES,
    Plot,
    StoredObject,
    escaped,
    fact_label,
    fact_text,
    human_bytes,
    human_number,
    human_percent,
    human_seconds,
    image,
    object_link,
)
from tasks.pages.report import RunReport, StageReport, conclusion, summary_numbers, summary_rows, terminal_summary
from tasks.store.manifest import Account, Cost

BROWSER = "http://127.0.0.1:9001/browser/{bucket}/{key}"


def speed(arm: ArmName, concurrency: int, tok_per_s: float, repeat: int = 0) -> Speed:
    return Speed(
        arm=arm,
        concurrency=concurrency,
        repeat=repeat,
        num_prompts=4,
        completion_tokens=1000,
        wall_s=1000 / tok_per_s,
        tok_per_s=tok_per_s,
    )


def acceptance(dataset: str, *rates: float) -> Acceptance:
    return Acceptance(
        dataset=dataset,
        num_prompts=96,
        num_steps=7000,
        num_accepted=round(7000 * sum(rates)),
        acceptance_length=1 + sum(rates),
        per_position=rates,
    )


def measurement() -> Measurement:
    draft = Arm(
        name="draft",
        fingerprint="ab",
        acceptance=(acceptance("service", 0.41, 0.16, 0.07), acceptance("general", 0.2, 0.06, 0.02)),
        speeds=(speed("draft", 1, 36), speed("draft", 8, 171)),
    )
    baseline = Arm(
        name="baseline", fingerprint=None, acceptance=(), speeds=(speed("baseline", 1, 30), speed("baseline", 8, 180))
    )
    return Measurement(
        draft_tokens=3,
        temperature=0.0,
        max_tokens=128,
        arms=(baseline, draft),
        engine={"vllm": "0.32.0"},
        prompt_sets={"service": PromptSetIdentity(sha256="51", count=96)},
    )


GENERATE = StageReport(
    name="generate",
    cost=Cost(seconds=212, tokens=62_000, bytes_written=1_258_291),
    account=Account(num_input=520, num_kept=509, num_failed=3, num_skipped=8, reasons={"cut | off": 8, "timeout": 3}),
    facts={"mean_tokens": 118.25, "tok_per_s": 291.2, "loss": float("nan"), "coverage_fraction": 0.98712},
    objects=(StoredObject("rows/0.parquet", "s3://draftworks/corpus/9f/rows/0.parquet", 1_258_291),),
)
EXTRACT = StageReport(name="extract", cost=Cost(seconds=63, tokens=96_000), reused_because="the same corpus 9f")
PASSED = conclude("full", [CheckResult(rule="R1", severity="error", outcome="pass", message="")], (), {})


def report(**changes: object) -> RunReport:
    fields: dict[str, object] = {
        "name": "demo-9f2c",
        "target": "SmolLM2",
        "stages": (GENERATE, EXTRACT),
        "draft": "draft/77aa",
        "verdict": PASSED,
        "measurement": measurement(),
    }
    return RunReport(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1,023 B"), (1536, "1.50 KiB"), (2**28, "256 MiB"), (3 * 2**40, "3 TiB")]
)
def test_bytes_are_in_binary_units(size: int, text: str) -> None:
    assert human_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")]
)
def test_durations_are_in_the_unit_a_person_would_use(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "n/a"), (float("inf"), "n/a"), (12345, "12,345"), (1.6431, "1.64"), (118.25, "118"), (0.0123, "0.0123")],
)
def test_numbers_keep_three_digits(value: float | None, text: str) -> None:
    assert human_number(value) == text


def test_nan_never_reaches_a_page() -> None:
    nan = float("nan")
    assert {human_bytes(nan), human_seconds(nan), human_number(nan), human_percent(nan), fact_text("x_s", nan)} == {
        "n/a"
    }
    assert "nan" not in stage_page(GENERATE).lower()


@pytest.mark.parametrize(
    ("key", "value", "label", "text"),
    [
        ("num_rows", 1200, "rows", "1,200"),
        ("wait_s", 90, "wait", "1 min 30 s"),
        ("shard_bytes", 2048, "shard", "2 KiB"),
        ("coverage_fraction", 0.98712, "coverage fraction", "98.7 %"),
        ("train_tok_per_s", 780.4, "train speed", "780 tok/s"),
        ("algorithm", "eagle3", "algorithm", "eagle3"),
        ("norm", True, "norm", "True"),
    ],
)
def test_facts_are_shown_in_the_unit_of_their_key(key: str, value: str | float, label: str, text: str) -> None:
    assert (fact_label(key), fact_text(key, value)) == (label, text)


def test_foreign_text_stays_one_cell_of_text() -> None:
    assert escaped("a|b\n<img src=x> [x](http://y) `c`") == "a\\|b &lt;img src=x> \\[x\\](http://y) 'c'"


def test_a_link_is_made_beside_the_uri_and_encoded() -> None:
    text = object_link("s3://bucket/a b/f+#?.bin", BROWSER)
    assert text == "`s3://bucket/a b/f+#?.bin` [open](http://127.0.0.1:9001/browser/bucket/a%20b/f%2B%23%3F.bin)"
    assert object_link("s3://bucket/key", None) == "`s3://bucket/key`"


@pytest.mark.parametrize("template", ["ftp://x/{key}", "javascript:alert({key})", "http://x/"])
def test_a_browser_template_that_cannot_work_is_refused(template: str) -> None:
    with pytest.raises(RecipeError, match="DRAFTWORKS_S3_BROWSER_URL"):
        object_link("s3://bucket/key", template)


def test_pictures_are_data_uris_of_their_own_type() -> None:
    assert image(Plot("loss", b"\x89PNGx")).startswith("![loss](data:image/png;base64,")
    assert image(Plot("loss", b"<svg/>")) == "![loss](data:image/svg+xml;base64,PHN2Zy8+)"


def test_stage_page_accounts_for_every_row() -> None:
    text = stage_page(GENERATE, BROWSER)
    assert "| 520 | 509 | 3 | 8 |" in text
    assert "| cut \\| off | 8 |\n| timeout | 3 |" in text
    assert "| coverage fraction | 98.7 % |" in text
    assert "| loss | n/a |" in text
    assert "Made in 3 min 32 s, 1.20 MiB written." in text
    assert "[open](http://127.0.0.1:9001/browser/draftworks/corpus/9f/rows/0.parquet)" in text


def test_a_reused_stage_says_so_and_why() -> None:
    assert "**Reused**, nothing was computed: the same corpus 9f. When made, it took 1 min 03 s" in stage_page(EXTRACT)


def test_only_the_most_frequent_reasons_are_listed() -> None:
    reasons = {f"reason {number:02d}": number for number in range(1, 15)}
    account = Account(num_input=105, num_kept=0, num_failed=105, reasons=reasons)
    text = stage_page(StageReport(name="x", cost=Cost(seconds=1), account=account))
    assert "reason 14 | 14" in text
    assert "reason 04" not in text
    assert "| other reasons | 10 |" in text


def test_run_page_begins_with_the_conclusion() -> None:
    assert run_page(report()).split("\n\n")[1] == (
        "**The draft passed its checks, reaches an acceptance length of 1.64 on the service's prompts (1.28 on general "
        "ones) and serves 1.20x the tokens/s of the target alone at concurrency 1, 0.95x at 8.**"
    )


def test_run_page_shows_speed_acceptance_stages_and_cost() -> None:
    text = run_page(report(), BROWSER)
    assert "| 1 | 30.0 | 36.0 | **1.20x** | 1.20x |" in text
    assert "| service | draft | 96 | 7,000 | **1.64** | 41.0 % | 16.0 % | 7.0 % |" in text
    assert "| generate | made | 520 | 509 | 3 | 8 | 3 min 32 s |  | 62,000 | 1.20 MiB |" in text
    assert "| **all that was made** |  |  |  |  |  | 3 min 32 s |  | 62,000 | 1.20 MiB |" in text
    assert "- **extract**: the same corpus 9f" in text
    assert "1 + accepted / steps" in text


def test_tables_have_as_many_cells_in_every_row() -> None:
    for block in run_page(report(), BROWSER).split("\n\n"):
        if block.startswith("|"):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block


def test_a_draft_that_failed_is_named_with_its_first_error() -> None:
    verdict = conclude(
        "full",
        [
            CheckResult(rule="W1", severity="warning", outcome="fail", message="small thing"),
            CheckResult(rule="E1", severity="error", outcome="fail", message="fc.weight is missing", mend="save it"),
        ],
        ("engine",),
        {},
    )
    text = run_page(report(verdict=verdict, measurement=None))
    assert "**The draft must not serve: 1 checks found an error; first E1: fc.weight is missing.**" in text
    assert text.index("| E1 | error | fc.weight is missing | save it |") < text.index("| W1 |")
    assert "Not checked: engine." in text


def test_a_decision_is_the_conclusion_and_the_figures_follow() -> None:
    found = report(decision="The champion moved.")
    assert conclusion(found) == "The champion moved."
    assert run_page(found).split("\n\n")[2].startswith("The draft passed its checks, reaches")


def test_a_run_without_a_draft_has_a_page() -> None:
    found = report(draft=None, verdict=None, measurement=None)
    assert conclusion(found) == "No draft was measured in this run."
    assert "not verified" in run_page(found)
    assert summary_numbers(found) == {
        "verdict": None,
        "acceptance_length": None,
        "acceptance_length_general": None,
        "speedup": {},
    }


def test_the_figures_are_plain_json() -> None:
    assert summary_numbers(report()) == {
        "verdict": "PASS",
        "acceptance_length": 1.64,
        "acceptance_length_general": 1.28,
        "speedup": {"1": 1.2, "8": 0.95},
    }


def test_pages_stay_below_the_limit() -> None:
    objects = tuple(StoredObject(f"shard-{n}", f"s3://bucket/{'k' * 400}/{n}", 2**28) for n in range(5000))
    stage = StageReport(name="extract", cost=Cost(seconds=1), objects=objects, plots=(Plot("loss", b"x" * 90_000),))
    for text in (stage_page(stage, BROWSER), run_page(report(stages=(stage,), plots=stage.plots), BROWSER)):
        assert len(text.encode()) <= MAX_PAGE_BYTES
        assert "*loss: 87.9 KiB do not fit on this page.*" in text
        assert "more | " in text


def test_the_terminal_shows_the_same_rows() -> None:
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(terminal_summary("demo [x]", summary_rows(report()), conclusion(report())))
    text = capture.get()
    for words in ("demo [x]", "acceptance length, service prompts", "1.64", "speed-up at concurrency 8", "0.95x"):
        assert words in text
