"""The plan of one production: every artifact's fingerprint, known before any work is done.

A fingerprint depends on what is asked and on the fingerprints of inputs, never on results, so the whole
chain follows from the recipe, the target, the prompts and the engine build:

    corpus -> states -> draft -> verdict
           -> vocabulary ->   -> measurement -> package, release
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tasks.recipe.fingerprint import fingerprint
from tasks.recipe.recipe import Recipe

Kind = Literal["corpus", "states", "vocabulary", "draft", "verdict", "measurement", "package", "release"]

# Raise a stage's number when its result changes for the same request.
STAGE_VERSIONS: dict[Kind, int] = {
    "corpus": 1,
    "states": 1,
    "vocabulary": 1,
    "draft": 1,
    "verdict": 1,
    "measurement": 1,
    "package": 1,
    "release": 1,
}

# What depends on the engine build beyond its inputs.
ENGINE_KINDS: frozenset[Kind] = frozenset({"states", "measurement"})

# Fields that say how fast or how patiently, not what: they change no result.
PACE_FIELDS: dict[str, set[str]] = {
    "generation": {"endpoints", "concurrency", "max_failed_fraction"},
    "extraction": {"layer_ids", "concurrency"},
    "training": {"num_processes", "deadline_minutes"},
    "benchmark": {"prompts", "general_prompts"},
}


class PlanInputs(BaseModel):
    """What the plan is computed from, beside the recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target_identity: str
    published_name: str
    end_of_turn_ids: tuple[int, ...]
    layer_ids: tuple[int, ...]
    engine: dict[str, str]
    prompts_sha256: str
    held_out_sha256: str
    general_sha256: str | None
    champion: str | None = None


class Link(BaseModel):
    """One artifact of the chain: what was asked, and what it is made from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    fingerprint: str
    asked: dict[str, Any]
    inputs: dict[str, str]


class Plan(BaseModel):
    """The links of one production, by kind."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: PlanInputs
    links: dict[Kind, Link]

    def fingerprint(self, kind: Kind) -> str:
        """Return the fingerprint of the artifact of this kind."""
        return self.links[kind].fingerprint


def _asked(recipe: Recipe, section: str) -> dict[str, Any]:
    values: dict[str, Any] = getattr(recipe, section).model_dump(mode="json")
    return {key: value for key, value in values.items() if key not in PACE_FIELDS.get(section, set())}


def _requests(recipe: Recipe, given: PlanInputs) -> dict[Kind, dict[str, Any]]:
    """Return what each stage is asked: exactly the recipe parts that it reads."""
    remote_code = recipe.target.trust_remote_code
    served = {"vllm": recipe.vllm, "trust_remote_code": remote_code}
    prompts = {"system": recipe.prompts.system, "limit": recipe.prompts.limit, "seed": recipe.prompts.seed}
    end_of_turn = list(given.end_of_turn_ids) if recipe.vocabulary.pin_end_of_turn else []
    return {
        "corpus": {"prompts": prompts, "generation": _asked(recipe, "generation"), **served},
        "states": {"layer_ids": list(given.layer_ids), "extraction": _asked(recipe, "extraction"), **served},
        "vocabulary": {"vocabulary": _asked(recipe, "vocabulary"), "end_of_turn_ids": end_of_turn},
        "draft": {
            "draft": _asked(recipe, "draft"),
            "training": _asked(recipe, "training"),
            "published_name": given.published_name,
            "trust_remote_code": remote_code,
        },
        "verdict": {"verification": _asked(recipe, "verification"), "trust_remote_code": remote_code},
        "measurement": {"benchmark": _asked(recipe, "benchmark"), "system": recipe.prompts.system, **served},
        "package": {"published_name": given.published_name},
        "release": {},
    }


def _parents(given: PlanInputs, done: Mapping[Kind, Link]) -> dict[str, dict[str, str]]:
    """Return, for each kind, the inputs that can be named once the links in done are known."""

    def of(*kinds: Kind) -> dict[str, str]:
        return {kind: done[kind].fingerprint for kind in kinds if kind in done}

    sets = {"held_out": given.held_out_sha256, "general": given.general_sha256, "champion": given.champion}
    return {
        "corpus": {"prompts": given.prompts_sha256},
        "states": of("corpus"),
        "vocabulary": of("corpus"),
        "draft": of("corpus", "states", "vocabulary"),
        "verdict": of("draft"),
        "measurement": {**of("draft"), **{name: value for name, value in sets.items() if value}},
        "package": of("draft", "verdict", "measurement"),
        "release": of("verdict", "measurement"),
    }


def make_plan(recipe: Recipe, given: PlanInputs) -> Plan:
    """Return the fingerprints of all artifacts that this recipe leads to."""
    requests = _requests(recipe, given)
    links: dict[Kind, Link] = {}
    for kind, version in STAGE_VERSIONS.items():
        inputs = _parents(given, links)[kind]
        engine = given.engine if kind in ENGINE_KINDS else {}
        name = fingerprint(kind, version, requests[kind], inputs, target=given.target_identity, engine=engine)
        links[kind] = Link(kind=kind, fingerprint=name, asked=requests[kind], inputs=inputs)
    return Plan(inputs=given, links=links)
