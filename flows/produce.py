"""Flow produce-draft: from prompts to a measured draft.

prompts -> generate -> extract -> train -> verify -> benchmark -> summary
                    -> vocabulary ->
"""

from typing import Any

from prefect import flow, runtime

from tasks.benchmark import benchmark
from tasks.extract import extract
from tasks.generate import generate
from tasks.inuse import in_use
from tasks.package import package
from tasks.prepare import prepare
from tasks.recipe.fingerprint import digest
from tasks.recipe.plan import Plan
from tasks.recipe.recipe import Recipe, load_recipe
from tasks.recipe.settings import PROJECT_ROOT
from tasks.stage import Done
from tasks.summary import RunSummary, summary
from tasks.train import train
from tasks.verify import verify
from tasks.vocabulary import vocabulary

# What the form of the UI is filled with.
FIRST_RECIPE = load_recipe(PROJECT_ROOT / "deployments" / "recipes" / "demo.toml")


def run_name() -> str:
    """Return the run's name: the recipe's, and the start of its digest."""
    recipe: Any = runtime.flow_run.parameters["recipe"]
    plain = recipe if isinstance(recipe, Recipe) else Recipe.model_validate(recipe)
    return f"{plain.name}-{digest(plain)[:8]}"


def make_draft(recipe: Recipe, plan: Plan) -> list[Done]:
    """Return the results of all stages of a production; a draft that fails its checks is not measured."""
    done = [generate(recipe, plan), extract(recipe, plan), vocabulary(recipe, plan), train(recipe, plan)]
    done.append(verify(recipe, plan))
    if done[-1].facts["outcome"] != "FAIL":
        done += [benchmark(recipe, plan), package(recipe, plan)]
    return done


@flow(name="produce-draft", flow_run_name=run_name, persist_result=False)
def produce_draft(recipe: Recipe = FIRST_RECIPE) -> RunSummary:
    """Make a draft for a target, check it, and measure it with and without.

    Args:
        recipe: What is asked. Everything that an earlier run made from the same request is reused.
    """
    plan = prepare(recipe)
    with in_use(plan):
        return summary(recipe, plan, make_draft(recipe, plan))
