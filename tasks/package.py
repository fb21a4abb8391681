"""Stage package: the folder that is deployed, with its model card made from the figures at hand.

Leaves config.json, model.safetensors (nothing of the training) and README.md.
"""

from tasks.bench.measurement import parse_measurement
from tasks.benchmark import MEASUREMENT_NAME
from tasks.checks.card import CardFacts, model_card
from tasks.checks.verdict import Verdict
from tasks.drafting.publish import SERVED_FILES
from tasks.job import Job, found_or_made
from tasks.recipe.plan import Plan
from tasks.recipe.recipe import Recipe
from tasks.stage import Done, stage
from tasks.verify import VERDICT_NAME

CARD_NAME = "README.md"
TRAINING_FACTS = ("epoch", "epochs", "predicted_acceptance_length", "rows", "layer_ids")


def _card(job: Job) -> str:
    verdict = Verdict.model_validate_json(job.artifacts.read_bytes(job.input("verdict"), VERDICT_NAME))
    measured = job.artifacts.read_bytes(job.input("measurement"), MEASUREMENT_NAME)
    corpus, draft = job.artifacts.manifest(job.input("corpus")), job.artifacts.manifest(job.input("draft"))
    vocabulary = job.artifacts.manifest(job.input("vocabulary"))
    target = job.plan.inputs.published_name
    provenance = {"fingerprint": draft.fingerprint, "made": draft.created, "commit": draft.provenance.git_commit}
    return model_card(
        CardFacts(
            name=f"{target.split('/')[-1]}-eagle3-{draft.fingerprint[:8]}",
            target=target,
            draft_tokens=job.recipe.benchmark.draft_tokens,
            verdict=verdict,
            measurement=parse_measurement(measured, str(job.input("measurement"))),
            data={**corpus.facts, "draft vocabulary": vocabulary.facts["draft_size"]},
            training={key: draft.facts[key] for key in TRAINING_FACTS if key in draft.facts},
            provenance={**provenance, **draft.provenance.packages, **job.plan.inputs.engine},
        )
    )


def _make(job: Job) -> Done:
    folder = job.fetch("draft", SERVED_FILES)
    files = [job.artifacts.put(job.ref, name, folder / name) for name in SERVED_FILES]
    files.append(job.artifacts.put_bytes(job.ref, CARD_NAME, _card(job).encode("utf-8")))
    left_out = [
        entry.path for entry in job.artifacts.manifest(job.input("draft")).files if entry.path not in SERVED_FILES
    ]
    return job.finish(files, {"target": job.plan.inputs.published_name, "left_out": ", ".join(left_out)})


@stage("package")
def package(recipe: Recipe, plan: Plan) -> Done:
    """Make the folder to deploy from this plan's draft, or find it in the store."""
    return found_or_made("package", recipe, plan, _make)
