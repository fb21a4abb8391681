"""Stage prepare: all that can be checked for free, and the plan of the production."""

import shutil

from prefect.logging import get_run_logger

from tasks.bench.measurement import GENERAL, SERVICE
from tasks.bench.prompts import freeze, identify, overlap, refuse_overlap
from tasks.checks.rules import RULES
from tasks.corpus.conversation import Conversation
from tasks.corpus.prompts import read_prompt_set
from tasks.drafting.support import check_can_draft, default_layer_ids
from tasks.errors import RecipeError
from tasks.recipe.plan import Plan, PlanInputs, make_plan
from tasks.recipe.recipe import Recipe
from tasks.recipe.sections import Prompts
from tasks.recipe.settings import Settings, load_settings
from tasks.recipe.target import TargetModel, end_of_turn_ids, read_config, resolve_target
from tasks.serving.engine import engine_build
from tasks.stage import open_artifacts, stage
from tasks.store.pointers import Pointers

MIN_FREE_BYTES = 2 * 2**30


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


def _check_disk(settings: Settings) -> None:
    settings.scratch_dir.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(settings.scratch_dir).free
    if free < MIN_FREE_BYTES:
        raise RecipeError(
            f"{settings.scratch_dir} has {free / 2**30:.1f} GiB free; expected at least "
            f"{MIN_FREE_BYTES / 2**30:.0f} GiB. Free some space or set DRAFTWORKS_SCRATCH to another disk."
        )


def plan_production(recipe: Recipe, settings: Settings, *, with_champion: bool = False) -> Plan:
    """Return the plan after the checks that cost nothing.

    with_champion: measure against the target's champion as well, where there is one.
    Raises RecipeError, EvidenceError or StoreError: what was seen, what was expected, what to do.
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
    _check_disk(settings)
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
    return make_plan(recipe, given)


@stage("prepare")
def prepare(recipe: Recipe, with_champion: bool = False) -> Plan:
    """Check for free what can be checked, and return the plan."""
    plan = plan_production(recipe, load_settings(), with_champion=with_champion)
    for kind, link in plan.links.items():
        get_run_logger().info("%s will be %s/%s", kind, kind, link.fingerprint)
    return plan
