"""Guards the estimate before any work: arithmetic, refusals, earlier runs before rules of thumb, reuse is free."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from infra.cli import app
from tasks.corpus.conversation import Conversation
from tasks.errors import RecipeError
from tasks.estimate.limits import SPARE_BYTES, Disk, refuse_beyond
from tasks.estimate.pace import Circumstances, PastRun, past_run, seconds_from
from tasks.estimate.production import Request, estimate_production
from tasks.estimate.shapes import active_parameters, draft_shape
from tasks.estimate.tokens import TOKENS_PER_CONVERSATION, TOKENS_PER_TURN, PromptTokens, prompt_tokens
from tasks.pages.estimate import Estimate, StageEstimate, estimate_line, estimate_page
from tasks.prepare import plan_production
from tasks.recipe.plan import STAGE_VERSIONS, Plan
from tasks.recipe.recipe import Recipe, load_recipe
from tasks.recipe.sections import Budget, Draft
from tasks.recipe.settings import PROJECT_ROOT, Settings, load_settings
from tasks.stage import open_artifacts
from tasks.store.artifact import ArtifactRef
from tasks.store.manifest import Cost, Manifest, Provenance
from tasks.store.provenance import hardware
from tests.faults.servers import credentials, localbucket

CASES = Path(__file__).parents[1] / "cases"
GIB = 2**30
# SmolLM2-135M-Instruct.
CONFIG: dict[str, Any] = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
}
# What README.md says of demo.toml on two cores: seconds of the four long stages.
MEASURED_S = {"corpus": 402.0, "states": 219.0, "draft": 687.0, "measurement": 375.0}
MEASURED_ROW_TOKENS = 145_980


def demo(**changes: Any) -> Request:
    """Return what is known of demo.toml: 1,080 prompts, 96 prompts in each held-out set."""
    given = Request(
        recipe=load_recipe(PROJECT_ROOT / "deployments" / "recipes" / "demo.toml"),
        config=CONFIG,
        target_bytes=269_060_552,
        num_taps=3,
        prompts=PromptTokens(1080, 67_569, 103_680),
        service=PromptTokens(96, 5_700, 9_216),
        general=PromptTokens(96, 7_700, 9_216),
        num_cpus=2,
    )
    return replace(given, **changes)


def made(kind: str, seconds: float = 1.0, tokens: int = 0, facts: dict[str, Any] | None = None) -> Manifest:
    """Return the manifest of an artifact of the demo's target that was made on this machine."""
    recipe = {"target": {"model": "t", "revision": None}, "generation": {"endpoints": []}}
    return Manifest(
        kind=kind,
        fingerprint="e" * 64,
        stage_version=1,
        inputs={},
        files=(),
        account=None,
        cost=Cost(seconds=seconds, tokens=tokens),
        provenance=Provenance(
            argv=(), git_commit=None, git_dirty=None, packages={}, engine={}, hardware=hardware(), recipe=recipe
        ),
        facts=facts or {},
        created="2026-01-31T02:00:00+00:00",
    )


def test_hidden_states_take_tokens_x_slots_x_hidden_x_bytes() -> None:
    estimate = estimate_production(demo())
    tokens = 67_569 + 103_680
    assert estimate.stage("states").tokens == tokens
    assert estimate.stage("states").store_bytes == tokens * 4 * 576 * 2
    wide = load_recipe(PROJECT_ROOT / "deployments" / "recipes" / "demo.toml").model_copy(
        update={"vllm": {"dtype": "float32"}}
    )
    assert estimate_production(demo(recipe=wide)).stage("states").store_bytes == tokens * 4 * 576 * 4


def test_a_prompt_counts_its_bytes_its_turns_and_its_tools() -> None:
    plain = Conversation(id="a", messages=({"role": "user", "content": "x" * 30},))
    assert prompt_tokens(plain) == 10 + TOKENS_PER_TURN + TOKENS_PER_CONVERSATION
    chinese = Conversation(id="b", messages=({"role": "user", "content": "\u4f60" * 10},))
    assert prompt_tokens(chinese) == prompt_tokens(plain)
    with_tool = plain.model_copy(update={"tools": ({"name": "f"},)})
    assert prompt_tokens(with_tool) > prompt_tokens(plain)


def test_a_row_is_never_longer_than_the_server_allows() -> None:
    long = Conversation(id="a", messages=({"role": "user", "content": "x" * 9000},))
    assert PromptTokens.count([long], 100, longest=1024) == PromptTokens(1, 1024, 0)
    assert PromptTokens.count([long], 100).tokens == prompt_tokens(long) + 100


def test_the_draft_has_the_size_that_speculators_writes() -> None:
    shape = draft_shape(CONFIG, Draft(), 3, 8192)
    written = 76_359_144  # model.safetensors of such a draft
    assert shape.weight_bytes == pytest.approx(written, rel=0.001)
    optimizer = 10_199_063  # optimizer_state_dict.pt with Muon; twice that with AdamW
    assert optimizer < shape.epoch_bytes - shape.weight_bytes < 2.1 * optimizer
    assert active_parameters(CONFIG) == pytest.approx(134.5e6, rel=0.01)


def test_every_epoch_is_counted_while_it_is_stored() -> None:
    recipe = demo().recipe
    longer = recipe.model_copy(update={"training": recipe.training.model_copy(update={"epochs": 13})})
    more = estimate_production(demo(recipe=longer)).stage("draft")
    few = estimate_production(demo()).stage("draft")
    assert more.store_bytes - few.store_bytes >= 10 * draft_shape(CONFIG, Draft(), 3, 4096).epoch_bytes
    assert more.tokens == 13 * 171_249


def test_a_mixture_of_experts_counts_the_experts_that_a_token_passes() -> None:
    experts = {**CONFIG, "num_experts_per_tok": 2, "moe_intermediate_size": 1536, "num_experts": 64}
    extra = active_parameters(experts) - active_parameters(CONFIG)
    assert extra == 30 * 3 * 576 * 1536


def test_the_rule_of_thumb_is_right_within_a_factor_of_two_on_the_demo() -> None:
    estimate = estimate_production(demo())
    for kind, seconds in MEASURED_S.items():
        assert seconds / 2 < estimate.stage(kind).seconds < seconds * 2, kind
        assert estimate.stage(kind).basis == "rule of thumb"
    assert MEASURED_ROW_TOKENS < estimate.stage("states").tokens < 1.25 * MEASURED_ROW_TOKENS


def test_a_gpu_is_faster_and_so_are_two() -> None:
    one = estimate_production(demo(device="cuda"))
    assert one.stage("corpus").seconds < estimate_production(demo()).stage("corpus").seconds
    big = {**CONFIG, "hidden_size": 4096, "intermediate_size": 14336, "head_dim": 128, "num_attention_heads": 32}
    alone = demo(device="cuda", config=big, target_bytes=16 * GIB)
    shared = alone.recipe.model_copy(update={"vllm": {"tensor-parallel-size": 2}})
    faster = estimate_production(replace(alone, recipe=shared)).stage("states").seconds
    assert faster < estimate_production(alone).stage("states").seconds


def test_earlier_runs_beat_the_rule_of_thumb() -> None:
    past = {
        "corpus": tuple(PastRun(30.0 + seconds, 100_000, f"2026-01-0{seconds // 100}") for seconds in (100, 200, 900))
    }
    stage = estimate_production(demo(past=past)).stage("corpus")
    assert stage.basis == "3 earlier runs"
    assert stage.seconds == pytest.approx(30 + 200 * 1.0368, rel=0.02)


def test_runs_much_smaller_than_this_one_say_nothing() -> None:
    assert seconds_from([PastRun(60.0, 900, "a")], 10_000, start_s=30.0) is None
    assert seconds_from([], 10_000, start_s=30.0) is None
    assert seconds_from([PastRun(60.0, 1000, "a")], 1000, start_s=30.0) == (60.0, "1 earlier run")
    assert seconds_from([PastRun(3.0, 0, "a"), PastRun(5.0, 0, "b")], 0, start_s=2.0) == (4.0, "2 earlier runs")


def test_only_runs_of_the_same_target_on_the_same_hardware_count() -> None:
    now = Circumstances("t", None, hardware(), on_gpu=False, is_attached=False)
    assert past_run(made("states", 9.0, 5), now) == PastRun(9.0, 5, "2026-01-31T02:00:00+00:00")
    for other in (
        replace(now, model="u"),
        replace(now, revision="main"),
        replace(now, on_gpu=True),
        replace(now, hardware={**hardware(), "cpus": "999"}),
    ):
        assert past_run(made("states", 9.0, 5), other) is None
    assert past_run(made("corpus", 9.0, 5), replace(now, is_attached=True)) is None
    assert past_run(made("verdict", 9.0), replace(now, is_attached=True, on_gpu=True)) is not None


def test_what_is_there_costs_nothing_and_its_tokens_are_known() -> None:
    estimate = estimate_production(demo(done={"corpus": made("corpus", facts={"tokens": MEASURED_ROW_TOKENS})}))
    assert estimate.stage("corpus") == StageEstimate("corpus")
    assert estimate_line(estimate.stage("corpus")) == "reused"
    assert estimate.stage("states").store_bytes == MEASURED_ROW_TOKENS * 4 * 576 * 2
    everything = estimate_production(demo(done={kind: made(kind) for kind in STAGE_VERSIONS}))
    assert (everything.store_bytes, everything.scratch_bytes, everything.seconds) == (0, 0, 0)
    assert "nothing will be computed" in estimate_page(everything)


def test_states_of_another_machine_are_fetched_and_what_is_on_scratch_is_not_counted_twice() -> None:
    states = {"states": made("states", facts={"tokens": 1000})}
    size = 1000 * 4 * 576 * 2
    fetched = estimate_production(demo(done=states)).stage("draft").scratch_bytes
    here = estimate_production(demo(done=states, on_scratch={"states": size})).stage("draft").scratch_bytes
    assert fetched - here == size
    begun = estimate_production(demo(on_scratch={"states": 500 * 2**20})).stage("states")
    assert begun.store_bytes - begun.scratch_bytes == 500 * 2**20


ESTIMATE = Estimate(
    (
        StageEstimate("corpus"),
        StageEstimate("states", 1000, 3 * GIB, 3 * GIB, 3600.0, "rule of thumb"),
        StageEstimate("draft", 3000, GIB, GIB, 7200.0, "3 earlier runs"),
    )
)
ROOMY = Disk(Path("/scratch"), free_bytes=100 * GIB)


def test_what_fits_passes() -> None:
    refuse_beyond(ESTIMATE, Budget(store_gib=4, hours=3), ROOMY)
    refuse_beyond(ESTIMATE, Budget(), replace(ROOMY, free_bytes=4 * GIB + SPARE_BYTES))
    refuse_beyond(Estimate((StageEstimate("corpus"),)), Budget(), replace(ROOMY, free_bytes=0))


@pytest.mark.parametrize(
    ("budget", "disk", "words"),
    [
        (Budget(store_gib=3.9), ROOMY, ["4 GiB to the store", "budget.store_gib = 3.9", "states 3 GiB, draft 1 GiB"]),
        (Budget(hours=2.5), ROOMY, ["3 h 00 min", "budget.hours = 2.5", "draft 2 h 00 min by 3 earlier runs"]),
        (Budget(), Disk(Path("/scratch"), 4 * GIB), ["/scratch has 4 GiB free", "up to 5 GiB", "DRAFTWORKS_SCRATCH"]),
        (Budget(), Disk(Path("/scratch"), 8 * GIB, holds_store=True), ["up to 9 GiB", "4 GiB for the store"]),
    ],
    ids=["store", "hours", "disk", "disk with store"],
)
def test_what_does_not_fit_is_refused_with_its_figures(budget: Budget, disk: Disk, words: list[str]) -> None:
    with pytest.raises(RecipeError) as refused:
        refuse_beyond(ESTIMATE, budget, disk)
    for word in [*words, "prompts.limit", "generation.max_tokens"]:
        assert word in str(refused.value)


def test_what_a_killed_run_has_stored_is_not_asked_for_again() -> None:
    refuse_beyond(ESTIMATE, Budget(), Disk(Path("/scratch"), 8 * GIB, holds_store=True, begun_bytes=2 * GIB))


def test_the_page_names_every_artifact_and_where_its_time_is_from() -> None:
    page = estimate_page(ESTIMATE)
    assert "Up to **4 GiB** in the store" in page and "**3 h 00 min**" in page
    assert "| states | 1,000 | 3 GiB | 3 GiB | 1 h 00 min | rule of thumb |" in page
    assert "| corpus |  |  |  |  | reused |" in page


@pytest.fixture
def recipe_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a recipe with a real store, a target of random weights, and an environment that looks like vLLM's."""
    python = tmp_path / "engine" / "bin" / "python"
    packages = tmp_path / "engine" / "lib" / "python3.11" / "site-packages"
    for name, version in (("vllm", "0.32.0"), ("torch", "2.13.0")):
        (packages / f"{name}-{version}.dist-info").mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (packages / f"{name}-{version}.dist-info" / "METADATA").write_text(text)
    python.parent.mkdir()
    python.write_text("")
    shutil.copytree(CASES / "_target", tmp_path / "target")
    for name in ("train", "held"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"id": name, "prompt": f"What is {name}?"}) + "\n")
    path = tmp_path / "recipe.toml"
    path.write_text(
        f'name = "small"\n[target]\nmodel = "{tmp_path / "target"}"\npublish_as = "owner/target"\n'
        '[prompts]\nsource = "train.jsonl"\n[extraction]\nlayer_ids = [1, 2, 3]\n'
        '[vocabulary]\ndraft_size = 32\n[benchmark]\nprompts = "held.jsonl"\n'
    )
    with credentials(), localbucket(tmp_path) as url:
        monkeypatch.setenv("DRAFTWORKS_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("DRAFTWORKS_S3_ENDPOINT", url)
        monkeypatch.setenv("DRAFTWORKS_VLLM_PYTHON", str(python))
        monkeypatch.delenv("DRAFTWORKS_SCRATCH", raising=False)
        open_artifacts(load_settings()).store.create_bucket()
        yield path


def store_made(plan: Plan, kind: str, recipe: Recipe, settings: Settings, tokens: int) -> None:
    """Put an artifact of a kind in the store, as if this plan or an earlier one had made it."""
    artifacts = open_artifacts(settings)
    ref = ArtifactRef(kind=kind, fingerprint=plan.links[kind].fingerprint)  # type: ignore[index]
    manifest = made(kind, 500.0, tokens, {"tokens": tokens})
    provenance = manifest.provenance.model_copy(update={"recipe": recipe.model_dump(mode="json")})
    artifacts.finish(manifest.model_copy(update={"fingerprint": ref.fingerprint, "provenance": provenance}))


def test_prepare_reads_what_is_there_and_what_it_took(recipe_file: Path) -> None:
    recipe, settings = load_recipe(recipe_file), load_settings()
    plan, estimate = plan_production(recipe, settings)
    assert [stage.kind for stage in estimate.to_do] == [kind for kind in STAGE_VERSIONS if kind != "release"]
    assert {stage.basis for stage in estimate.stages} == {"rule of thumb"}
    store_made(plan, "corpus", recipe, settings, 4000)
    again, estimate = plan_production(recipe, settings)
    assert again == plan
    assert estimate.stage("corpus").is_reused
    assert estimate.stage("states").tokens == 4000
    other = recipe.model_copy(update={"generation": recipe.generation.model_copy(update={"seed": 1})})
    assert plan_production(other, settings)[1].stage("corpus").basis == "1 earlier run"


def test_prepare_refuses_what_passes_the_budget_before_any_work(recipe_file: Path) -> None:
    recipe, settings = load_recipe(recipe_file), load_settings()
    short = recipe.model_copy(update={"budget": Budget(hours=0.001)})
    with pytest.raises(RecipeError, match=r"budget\.hours = 0\.001"):
        plan_production(short, settings)
    small = recipe.model_copy(update={"budget": Budget(store_gib=0.001)})
    with pytest.raises(RecipeError, match=r"budget\.store_gib = 0\.001"):
        plan_production(small, settings)


def test_doctor_explains_with_sizes_times_and_their_sums(recipe_file: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--explain", str(recipe_file), "--json"], env=dict(os.environ))
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout.splitlines()[-1])
    assert [row["kind"] for row in said["artifacts"]] == [kind for kind in STAGE_VERSIONS if kind != "release"]
    assert said["estimate"]["store_bytes"] == sum(row["store_bytes"] for row in said["artifacts"]) > 0
    assert {row["basis"] for row in said["artifacts"]} == {"rule of thumb"}
    assert "in all" in result.stdout
