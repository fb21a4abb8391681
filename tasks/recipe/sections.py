"""The sections of a recipe, one per stage; the docstring under a field is its help in the UI form."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tasks.recipe.form import Section

LayerId = Annotated[int, Field(ge=0)]
TokenId = Annotated[int, Field(ge=0)]


class Target(Section):
    """The model whose serving is to become faster."""

    model: str = Field(min_length=1)
    """Folder of the model, or a hub id (owner/name). A bare name is a folder below DRAFTWORKS_HOME/targets."""
    revision: str | None = None
    """Commit or tag on the hub; leave empty for a folder."""
    publish_as: str | None = None
    """Model id that a released draft names as its target. Empty: the hub id, or the folder's name."""
    trust_remote_code: bool = False
    """Run code that comes with the model. Named in every verdict when it is on."""


class Prompts(Section):
    """The questions that the target is asked; a draft fits the traffic they stand for."""

    source: str = Field(min_length=1)
    """JSONL or Parquet file, folder of them, s3:// prefix, or hf:owner/dataset. Relative to the recipe."""
    system: str | None = None
    """System turn put before prompts that have none, as the service would send it."""
    newest_files: Annotated[int, Field(ge=1)] | None = None
    """Of a folder or an s3:// prefix, read only this many newest files (by time; under s3:// by name)."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Use at most this many prompts, chosen by the seed."""
    seed: int = 0
    """Seed of the one shuffle that rows get."""


class Generation(Section):
    """How the target answers the prompts."""

    endpoints: tuple[str, ...] = ()
    """Base URLs of running vLLM servers (http://host:8000/v1). Empty: one is started for the stage."""
    max_tokens: int = Field(default=256, ge=1)
    """Longest answer, in tokens."""
    temperature: float = Field(default=0.0, ge=0.0, le=2.0)
    """Sampling temperature; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus sampling."""
    seed: int = 0
    """Sampling seed sent with every request."""
    concurrency: int = Field(default=32, ge=1)
    """Requests in flight at a time, over all endpoints."""
    shard_rows: int = Field(default=256, ge=1)
    """Rows per stored shard: what a crash can lose."""
    max_failed_fraction: float = Field(default=0.05, ge=0.0, le=1.0)
    """The stage fails when more than this share of the prompts could not be answered."""


class Extraction(Section):
    """Which hidden states of the target are kept."""

    layer_ids: tuple[LayerId, ...] | None = None
    """Layers whose input states feed the draft (0 = embeddings). Empty: 2, n//2 and n-3 of n layers."""
    concurrency: int = Field(default=8, ge=1)
    """Requests in flight at a time."""
    shard_mib: int = Field(default=256, ge=1)
    """Size of a packed shard in MiB."""

    @model_validator(mode="after")
    def _distinct_layers(self) -> Self:
        if self.layer_ids is not None and len(set(self.layer_ids)) != len(self.layer_ids):
            raise ValueError(f"layer_ids holds a layer twice: {list(self.layer_ids)}")
        if self.layer_ids == ():
            raise ValueError("layer_ids is an empty list; leave it out to get the default layers")
        return self


class Vocabulary(Section):
    """Which of the target's tokens the draft can propose."""

    draft_size: int = Field(default=32000, ge=1)
    """Tokens in the draft vocabulary. The target's own size means: no map."""
    pinned_ids: tuple[TokenId, ...] = ()
    """Token ids that are always part of the draft vocabulary."""
    pin_end_of_turn: bool = True
    """Also pin the target's end-of-sequence and end-of-turn ids."""


class Draft(Section):
    """The shape of the draft model."""

    algorithm: Literal["eagle3"] = Field(default="eagle3", title="Algorithm")
    """Speculative decoding algorithm, as speculators and vLLM name it."""
    decoder: Literal["llama", "qwen3"] = Field(default="llama", title="Decoder")
    """Architecture of the draft's decoder layers; vLLM serves these two."""
    num_layers: int = Field(default=1, ge=1, le=8)
    """Decoder layers."""
    norm_before_residual: bool = True
    """Residual stream after the norm, as in the EAGLE-3 drafts that vLLM assumes."""


class Training(Section):
    """How the draft is trained (speculators)."""

    epochs: int = Field(default=5, ge=1)
    """Passes over the corpus."""
    learning_rate: float = Field(default=6e-4, gt=0)
    """Peak learning rate."""
    ttt_steps: int = Field(default=3, ge=1, le=8)
    """Training-time-test steps: how many tokens ahead the draft learns to continue by itself."""
    sequence_tokens: int = Field(default=2048, ge=64)
    """Packed sequence length of one training batch, in tokens."""
    validation_fraction: float = Field(default=0.1, gt=0.0, lt=0.5)
    """Share of the rows kept for validation."""
    warmup_fraction: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Share of the steps over which the learning rate rises."""
    seed: int = 0
    """Seed of initialisation and order."""
    num_processes: int = Field(default=1, ge=1)
    """Training processes, one per GPU (torchrun)."""
    warm_start: bool = False
    """Start from the champion's weights; needs the champion's vocabulary map."""
    extra_args: dict[str, str | int | float | bool] = {}
    """More options of speculators' train command, by their own names without dashes."""
    deadline_minutes: float = Field(default=24 * 60, gt=0)
    """Stop the training with an error after this long."""


class Verification(Section):
    """How deep the draft is checked before it may serve."""

    level: Literal["header", "small", "full", "engine"] = Field(default="full", title="Level")
    """header: config and tensor headers; small: also maps and norms; full: every weight; engine: also in vLLM."""
    severities: dict[str, Literal["error", "warning", "note"]] = {}
    """Another severity for single rules, by rule id (CFG008 = "warning"); an error makes the verdict FAIL."""


class Benchmark(Section):
    """How the draft is measured, with and without, in one session."""

    prompts: str = Field(min_length=1)
    """Held-out prompts of the service (same forms as prompts.source); never part of training."""
    general_prompts: str | None = None
    """Prompts outside the service, measured and shown, never a bar."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Use at most this many prompts of each set."""
    max_tokens: int = Field(default=128, ge=2)
    """Longest answer, in tokens."""
    temperature: float = Field(default=0.0, ge=0.0, le=2.0)
    """Sampling temperature; 0 is greedy."""
    draft_tokens: int = Field(default=3, ge=1, le=16)
    """Tokens the draft proposes per step."""
    concurrencies: tuple[Annotated[int, Field(ge=1)], ...] = (1, 8)
    """Requests in flight at which tokens/s is measured."""
    speed_prompts: int = Field(default=32, ge=1)
    """Held-out prompts used for tokens/s at each concurrency."""
    repeats: int = Field(default=1, ge=1)
    """Server pairs (A B, then B A, ...) over which tokens/s is measured."""

    @model_validator(mode="after")
    def _distinct_concurrencies(self) -> Self:
        if not self.concurrencies or len(set(self.concurrencies)) != len(self.concurrencies):
            raise ValueError(f"concurrencies must name each value once, at least one: {list(self.concurrencies)}")
        return self


class Budget(Section):
    """What a production may cost; it is refused before any work is done when the estimate is higher."""

    store_gib: float = Field(default=500.0, gt=0)
    """Most that the production may write to the store, in GiB; hidden states and epochs are the bulk."""
    hours: Annotated[float, Field(gt=0)] | None = None
    """Longest that all stages together may take, in hours, by the estimate. Empty: no limit."""


class Release(Section):
    """When a new draft takes the champion's place."""

    single_writer: bool = False
    """Only one process ever moves this champion: allows stores that ignore conditional writes."""
