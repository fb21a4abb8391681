"""Stage prepare: all that can be checked for free, the plan of the production, and what it is expected to take."""

import os
import shutil
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger

from tasks.bench.measurement import GENERAL, SERVICE
from tasks.bench.prompts import freeze, identify, overlap, refuse_overlap
from tasks.checks.rules import RULES
from tasks.corpus.conversation import Conversation
from tasks.corpus.prompts import read_prompt_set
from tasks.drafting.support import check_can_draft, default_layer_ids
from tasks.errors import RecipeError
from tasks.estimate.known import look
from tasks.estimate.limits import Disk, refuse_beyond
from tasks.estimate.pace import Circumstances
from tasks.estimate.production import Request, estimate_production
from tasks.estimate.tokens import PromptTokens
from tasks.pages.estimate import Estimate, estimate_line, estimate_page
from tasks.recipe.plan import Plan, PlanInputs, make_plan
from tasks.recipe.recipe import Recipe
from tasks.recipe.sections import Prompts
from tasks.recipe.settings import Settings, device_of, load_settings
from tasks.recipe.target import TargetModel, end_of_turn_ids, read_config, resolve_target
from tasks.serving.engine import engine_build
from tasks.stage import open_artifacts, stage
from tasks.store.artifacts import Artifacts
from tasks.store.pointers import Pointers
from tasks.store.provenance import hardware

ASKED = "asked"  # the training prompts, beside the names of the benchmark's sets
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


def read_measured(recipe: Recipe, settings: Settings, source: str, name: str) -> tuple[Conversation, ...]:
    """Return the frozen prompts of a benchmark set: same system turn as the service, its own limit, a fixed order."""
    prompts = Prompts(source=source, system=recipe.prompts.system, limit=recipe.benchmark.limit)
    return freeze(name, read_prompt_set(prompts, settings, dataset=name).conversations)


def measured_sets(recipe: Recipe, settings: Settings) -> dict[str, tuple[Conversation, ...]]:
    """Return the benchmark's prompt sets by name: the service's own, and the general one where the recipe has it."""
    sets = {SERVICE: read_measured(recipe, settings, recipe.benchmark.prompts, SERVICE)}
    if recipe.benchmark.general_prompts:
        sets[GENERAL] = read_measured(recipe, settings, recipe.benchmark.general_prompts, GENERAL)
    return sets


def layer_ids(recipe: Recipe, target: TargetModel) -> tuple[int, ...]:
    """Return the layers whose states feed the draft: the recipe's, or speculators' default."""
    return recipe.extraction.layer_ids or default_layer_ids(target.num_layers)


def _check_severities(recipe: Recipe) -> None:
    unknown = sorted(set(recipe.verification.severities) - {rule.id for rule in RULES})
    if unknown:
        raise RecipeError(
            f"verification.severities names {', '.join(unknown)}; `draftworks check draft PATH` lists the rules"
        )


def _scratch_disk(settings: Settings, begun_bytes: int) -> Disk:
    """Return the scratch disk; the store is on it too when `draftworks up` keeps it there."""
    settings.scratch_dir.mkdir(parents=True, exist_ok=True)
    own_store = settings.home_dir / "s3"
    is_own = urlsplit(settings.s3_endpoint or "").hostname in LOOPBACK_HOSTS and own_store.is_dir()
    return Disk(
        folder=settings.scratch_dir,
        free_bytes=shutil.disk_usage(settings.scratch_dir).free,
        holds_store=is_own and own_store.stat().st_dev == settings.scratch_dir.stat().st_dev,
        begun_bytes=begun_bytes,
    )


def _circumstances(recipe: Recipe, settings: Settings) -> Circumstances:
    return Circumstances(
        model=recipe.target.model,
        revision=recipe.target.revision,
        hardware=hardware(),
        on_gpu=device_of(settings) == "cuda",
        is_attached=bool(recipe.generation.endpoints),
    )


def _estimate(
    recipe: Recipe,
    settings: Settings,
    target: TargetModel,
    plan: Plan,
    prompts: Mapping[str, Sequence[Conversation]],
    artifacts: Artifacts,
) -> Estimate:
    """Return what the production is expected to take. prompts: by name, ASKED among them.

    Raises RecipeError when it passes the recipe's budget or the free disk.
    """
    known = look(plan, artifacts, settings.scratch_dir, _circumstances(recipe, settings))

    def count(name: str, max_tokens: int) -> PromptTokens:
        return PromptTokens.count(prompts.get(name, ()), max_tokens, recipe.max_model_len)

    estimate = estimate_production(
        Request(
            recipe=recipe,
            config=target.config,
            target_bytes=sum(path.stat().st_size for path in target.folder.glob("*.safetensors")),
            num_taps=len(plan.inputs.layer_ids),
            prompts=count(ASKED, recipe.generation.max_tokens),
            service=count(SERVICE, recipe.benchmark.max_tokens),
            general=count(GENERAL, recipe.benchmark.max_tokens),
            has_champion=plan.inputs.champion is not None,
            device=device_of(settings),
            num_cpus=os.cpu_count() or 1,
            done=known.done,
            past=known.past,
            on_scratch=known.on_scratch,
        )
    )
    refuse_beyond(estimate, recipe.budget, _scratch_disk(settings, known.begun_bytes))
    return estimate


def plan_production(recipe: Recipe, settings: Settings, *, with_champion: bool = False) -> tuple[Plan, Estimate]:
    """Return the plan and what it is expected to take, after the checks that cost nothing.

    with_champion: measure against the target's champion as well, where there is one.
    Raises RecipeError, EvidenceError or StoreError: what was seen, what was expected, what to do; also when the
    estimate passes the recipe's budget or the free disk.
    """
    target = resolve_target(recipe.target, settings)
    layers = layer_ids(recipe, target)
    check_can_draft(read_config(target.folder), recipe.draft, recipe.vocabulary.draft_size, layers)
    _check_severities(recipe)
    training = read_prompt_set(recipe.prompts, settings)
    sets = measured_sets(recipe, settings)
    for name, measured in sets.items():
        refuse_overlap(overlap(measured, training.conversations), f"benchmark set {name!r}")
    engine = engine_build(settings.vllm_python)
    artifacts = open_artifacts(settings)
    artifacts.store.check_bucket()
    artifacts.store.canary()
    champion = None
    if with_champion:
        found = Pointers(artifacts.store).read(target.champion_name)
        champion = found[0].current if found else None
    given = PlanInputs(
        target_identity=target.identity,
        published_name=target.published_name,
        end_of_turn_ids=end_of_turn_ids(target.folder),
        layer_ids=layers,
        engine=engine,
        prompts_sha256=training.sha256,
        held_out_sha256=identify(sets[SERVICE]).sha256,
        general_sha256=identify(sets[GENERAL]).sha256 if GENERAL in sets else None,
        champion=champion.fingerprint if champion else None,
    )
    plan = make_plan(recipe, given)
    prompts = {ASKED: training.conversations, **sets}
    return plan, _estimate(recipe, settings, target, plan, prompts, artifacts)


@stage("prepare")
def prepare(recipe: Recipe, with_champion: bool = False) -> Plan:
    """Check for free what can be checked, say what the production is expected to take, and return the plan."""
    plan, estimate = plan_production(recipe, load_settings(), with_champion=with_champion)
    for kind, link in plan.links.items():
        said = estimate_line(estimate.stage(kind))
        get_run_logger().info("%s will be %s/%s: %s", kind, kind, link.fingerprint, said)
    create_markdown_artifact(
        estimate_page(estimate), key="estimate", description="What this production is expected to take"
    )
    return plan
