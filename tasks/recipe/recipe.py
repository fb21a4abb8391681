"""A recipe: what is asked of one production of a draft. The TOML form of it is in deployments/recipes/."""

import tomllib
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError, model_validator

from tasks.errors import RecipeError
from tasks.recipe.form import Section
from tasks.recipe.sections import (
    Benchmark,
    Budget,
    Draft,
    Extraction,
    Generation,
    Prompts,
    Release,
    Target,
    Training,
    Verification,
    Vocabulary,
)

# vLLM arguments that Draftworks sets itself, per stage.
OWNED_VLLM_ARGS = frozenset(
    {
        "model",
        "served_model_name",
        "host",
        "port",
        "api_key",
        "revision",
        "trust_remote_code",
        "speculative_config",
        "kv_transfer_config",
        "enable_prefix_caching",
        "no_enable_prefix_caching",
        "per_request_spec_decode_metrics",
    }
)


class Recipe(Section):
    """What is asked: target, prompts, and how each stage does its work."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")
    """Name of the production, shown in run names: lower-case letters, digits and dashes."""
    target: Target
    prompts: Prompts
    generation: Generation = Generation()
    extraction: Extraction = Extraction()
    vocabulary: Vocabulary = Vocabulary()
    draft: Draft = Draft()
    training: Training = Training()
    verification: Verification = Verification()
    benchmark: Benchmark
    release: Release = Release()
    budget: Budget = Budget()
    vllm: dict[str, str | int | float | bool] = {}
    """More arguments for every vLLM server that is started, by vLLM's own names (max_model_len = 2048)."""

    @property
    def max_model_len(self) -> int | None:
        """Return the tokens that a request may have, prompt and answer; None where the server decides."""
        length = self.vllm.get("max_model_len", self.vllm.get("max-model-len"))
        return length if isinstance(length, int) else None

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        owned = sorted({key.replace("-", "_").lstrip("_") for key in self.vllm} & OWNED_VLLM_ARGS)
        if owned:
            raise ValueError(f"vllm sets {', '.join(owned)}, which Draftworks sets itself for each stage; remove it")
        max_len = self.max_model_len
        longest = max(self.generation.max_tokens, self.benchmark.max_tokens)
        if max_len is not None and longest >= max_len:
            raise ValueError(f"max_tokens {longest} leaves no room for a prompt in vllm.max_model_len {max_len}")
        if self.benchmark.prompts == self.prompts.source:
            raise ValueError("benchmark.prompts is the training set; measure on prompts that training never saw")
        if self.training.warm_start:
            raise ValueError("training.warm_start is not supported yet; set it to false")
        return self


def _first_faults(error: ValidationError) -> str:
    faults = (f"{'.'.join(map(str, fault['loc'])) or 'recipe'}: {fault['msg']}" for fault in error.errors())
    return "; ".join(list(faults)[:5])


def _anchored(source: str | None, folder: Path) -> str | None:
    """Return a relative path made absolute; a URI (s3://, hf:) or None as it is."""
    if source is None or ":" in source.split("/", 1)[0] or Path(source).is_absolute():
        return source
    return str((folder / source).resolve())


def parse_recipe(data: dict[str, object], where: str) -> Recipe:
    """Return the recipe in data. Raises RecipeError that names every wrong field; where is for the message."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise RecipeError(
            f"{where} is not a usable recipe: {_first_faults(error)}. "
            "The fields are explained in deployments/recipes/demo.toml."
        ) from error


def load_recipe(path: Path) -> Recipe:
    """Return the recipe in a TOML file; relative prompt paths start at the file's folder.

    Raises RecipeError: no such file, not TOML, unknown or wrong fields.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {path}: {error.strerror}. Give the path of a .toml file.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not TOML: {error}") from error
    recipe = parse_recipe(data, str(path))
    folder = path.resolve().parent
    prompts = recipe.prompts.model_copy(update={"source": _anchored(recipe.prompts.source, folder)})
    benchmark = recipe.benchmark.model_copy(
        update={
            "prompts": _anchored(recipe.benchmark.prompts, folder),
            "general_prompts": _anchored(recipe.benchmark.general_prompts, folder),
        }
    )
    return recipe.model_copy(update={"prompts": prompts, "benchmark": benchmark})
