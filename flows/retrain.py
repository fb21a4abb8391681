"""Flow retrain-nightly: the newest prompts make a challenger; the champion moves only when it is beaten.

standing (anything new?) -> the stages of produce-draft, measured beside the champion -> release -> summary
"""

from prefect import flow

from flows.produce import make_draft, run_name
from tasks.inuse import in_use
from tasks.prepare import prepare
from tasks.recipe.recipe import Recipe, load_recipe
from tasks.recipe.settings import PROJECT_ROOT
from tasks.release import release, standing
from tasks.summary import RunSummary, summary

# What the form of the UI is filled with, and what the schedule runs.
NIGHTLY_RECIPE = load_recipe(PROJECT_ROOT / "deployments" / "recipes" / "nightly.toml")


@flow(name="retrain-nightly", flow_run_name=run_name, persist_result=False)
def retrain_nightly(recipe: Recipe = NIGHTLY_RECIPE) -> RunSummary:
    """Retrain on the newest prompts, and put the new draft in the champion's place if it is better.

    Args:
        recipe: What is asked; prompts.source is the place where new prompts arrive (folder or s3:// prefix).
    """
    plan = prepare(recipe, with_champion=True)
    with in_use(plan):
        unchanged = standing(recipe, plan)
        if unchanged is not None:
            return summary(recipe, plan, [], decision=unchanged)
        done = make_draft(recipe, plan)
        decision = release(recipe, plan)
        return summary(recipe, plan, [*done, decision], decision=str(decision.facts["reason"]))
