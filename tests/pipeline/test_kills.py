"""Guards what is stored against kill -9 of any process of the chain: it goes on from the last part, to the same end.

./infra/test tests/pipeline/test_kills.py              three moments, and two runs at once
./infra/test --long tests/pipeline/test_kills.py -s    twenty moments, and their table
"""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cell
from tests.pipeline.kills import Moment, Outcome, kill_at
from tests.pipeline.production import Production, wait_for
from tests.pipeline.services import tiny, write_prompts

pytestmark = pytest.mark.vllm
SEED = 20
FIRST_PROMPT = 5000
# How many parts a stage of the small recipe stores before its last, and how late after one a kill may come.
PARTS = {"generate": 3, "extract": 4, "train": 6}
LATE_S = {"generate": 4, "extract": 0.5, "vocabulary": 0.3, "train": 3, "verify": 0.3, "benchmark": 60, "package": 0.3}
# Productions, the way they are started, and which process dies in which stage; * continues on an empty scratch folder.
LONG: tuple[tuple[str, str], ...] = (
    ("produce", "generate:flow* extract:flow* train:flow* benchmark:flow*"),
    ("produce", "generate:vllm extract:vllm train:trainer verify:flow benchmark:vllm"),
    ("produce", "generate:s3 extract:s3 vocabulary:flow train:s3 benchmark:s3 package:flow*"),
    ("worker", "generate:worker extract:worker train:worker train:flow benchmark:worker"),
)


def moments(text: str, generator: random.Random) -> list[Moment]:
    """Return seeded moments from "stage:process" words."""
    found = []
    for word in text.split():
        stage, _, process = word.rstrip("*").partition(":")
        parts, late_s = generator.randint(0, PARTS.get(stage, 0)), generator.uniform(0, LATE_S[stage])
        found.append(Moment(stage, process, parts, late_s, word.endswith("*")))
    return found


def recipe(folder: Path, first: int) -> dict[str, Any]:
    """Return a recipe with several shards in every stage that has any, on prompts of its own."""
    write_prompts(folder / "prompts.jsonl", first, 24)
    found = tiny(folder / "prompts.jsonl")
    found["generation"]["shard_rows"] = 6
    found["extraction"]["shard_mib"] = 1
    return found


def show(cell: Cell, outcomes: list[Outcome]) -> None:
    """Put the outcomes into the table that is printed at the end of the run."""
    for number, found in enumerate(outcomes, start=1):
        by = "a new start" if found.restarted else "itself"
        columns = {
            "killed": found.moment.process,
            "in stage": found.stage,
            "parts kept": str(found.parts_kept),
            "work lost": f"{found.lost_s:.1f} s",
            "new result after": f"{found.continued_s:.0f} s",
            "by": f"{by} on an empty scratch folder" if found.moment.new_scratch else by,
        }
        for column, text in columns.items():
            cell("kill -9 at seeded moments", str(number), column, text)


def killed_production(home: Path, folder: Path, first: int, way: str, at: list[Moment]) -> list[Outcome]:
    """Run one production through its kills to its end; return what they cost."""
    folder.mkdir()
    production = Production(home, recipe(folder, first), folder, by_worker=way == "worker")
    production.start()
    outcomes = [kill_at(production, moment) for moment in at]
    production.finish()
    return outcomes


def test_kills_at_three_moments(home: Path, tmp_path: Path, cell: Cell) -> None:
    at = moments("extract:flow* train:s3 benchmark:vllm", random.Random(SEED))
    outcomes = killed_production(home, tmp_path / "killed", FIRST_PROMPT, "produce", at)
    assert len(outcomes) == 3
    show(cell, outcomes)


def test_two_runs_at_once_do_the_work_once(home: Path, tmp_path: Path) -> None:
    both = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        wanted = recipe(tmp_path / name, FIRST_PROMPT)
        wanted["training"]["epochs"] = 2  # a draft of its own, from the corpus that is there
        both.append(Production(home, wanted, tmp_path / name))
    assert both[0].fingerprints == both[1].fingerprints
    for production in both:
        production.scratch = production.folder / "scratch"
        production.start()
    wait_for(lambda: all(production.is_over() for production in both), 900, both[0].said())
    said = [production.logs[0].read_text() for production in both]
    for production in both:
        production.finish()
    for kind, fingerprint in both[0].fingerprints.items():
        if kind != "release":
            made = f"made s3://draftworks/{kind}/{fingerprint}/"
            assert sum(text.count(made) for text in said) <= 1, (kind, said)


@pytest.mark.long
def test_kills_at_twenty_moments(home: Path, tmp_path: Path, cell: Cell) -> None:
    generator = random.Random(SEED)
    outcomes: list[Outcome] = []
    for number, (way, text) in enumerate(LONG):
        at = moments(text, generator)
        outcomes += killed_production(home, tmp_path / f"{number}", 7000 + 100 * number, way, at)
        show(cell, outcomes)
    assert len(outcomes) == 20
