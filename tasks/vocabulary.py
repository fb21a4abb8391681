"""Stage vocabulary: counts the supervised tokens of the corpus and chooses the draft vocabulary.

Leaves t2d.npy [V] bool and d2t.npy [W] int64 offsets (none for a full vocabulary), and counts.npy [V] int64.
"""

import numpy as np

from tasks.corpus.rows import ROWS_PATTERN, read_rows
from tasks.drafting.vocabulary import choose_vocabulary, count_supervised, save_map
from tasks.job import Job, found_or_made
from tasks.recipe.plan import Plan
from tasks.recipe.recipe import Recipe
from tasks.stage import Done, stage

# A draft can propose at most what its vocabulary covers; below this share a larger one is worth its cost.
LOW_COVERAGE = 0.95


def pinned_ids(recipe: Recipe, plan: Plan) -> tuple[int, ...]:
    """Return the ids that the draft vocabulary must hold: the recipe's, and the end-of-turn ids if asked."""
    end_of_turn = plan.inputs.end_of_turn_ids if recipe.vocabulary.pin_end_of_turn else ()
    return tuple(sorted({*recipe.vocabulary.pinned_ids, *end_of_turn}))


def _make(job: Job) -> Done:
    recipe, plan = job.recipe, job.plan
    rows = read_rows(job.fetch_listed("corpus", ROWS_PATTERN))
    target = job.target()
    counts_V = count_supervised(rows.column("input_ids"), rows.column("loss_mask"), target.vocab_size)
    chosen = choose_vocabulary(counts_V, recipe.vocabulary.draft_size, pinned_ids(recipe, plan))
    np.save(job.scratch / "counts.npy", counts_V)
    paths = [job.scratch / "counts.npy"]
    facts = {"target_size": target.vocab_size, "draft_size": recipe.vocabulary.draft_size, "coverage": 1.0}
    facts["supervised_tokens"] = int(counts_V.sum())
    if chosen is not None:
        paths += save_map(chosen, job.scratch)
        facts |= {"coverage": chosen.coverage, "slots_without_evidence": chosen.num_without_evidence}
        if chosen.coverage < LOW_COVERAGE:
            job.logger.warning("the draft vocabulary covers only %.1f %% of the answers", 100 * chosen.coverage)
        if chosen.num_without_evidence:
            job.logger.warning(
                "%d of %d draft vocabulary slots hold tokens that the corpus never uses; more prompts would fill them",
                chosen.num_without_evidence,
                recipe.vocabulary.draft_size,
            )
    files = [job.artifacts.put(job.ref, path.name, path) for path in paths]
    return job.finish(files, facts, tokens=int(counts_V.sum()))


@stage("vocabulary")
def vocabulary(recipe: Recipe, plan: Plan) -> Done:
    """Choose the draft vocabulary of this plan, or find it in the store."""
    return found_or_made("vocabulary", recipe, plan, _make)
