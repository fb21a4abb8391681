"""How many seconds work takes: a rule of thumb from operations and bytes, or what earlier runs took.

Per step of a server the weights are read once, and every token costs two operations per weight it passes through. The
figures for a CPU are those of demo.toml on two AVX-512 cores, per core; those for CUDA are what an 80 GB data-centre
GPU of 2020 reaches in serving, a quarter to a half of its data sheet. Both are meant to be right within a factor of two
or three; earlier runs of the same target on the same hardware, not much smaller, replace them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tasks.store.manifest import Manifest

RULE_OF_THUMB = "rule of thumb"
# Between server, scratch and store: written, read back, hashed and sent.
MOVE_BYTES_PER_S = 200e6
# Weights from disk into a server.
LOAD_BYTES_PER_S = 500e6
# Python, torch and the trainer.
TRAINER_START_S = 20.0
# Of the newest runs those of the nearest size count. One of less than a tenth of the tokens says nothing: most of its
# time was the start (smoke.toml would put demo.toml at eight times what it took).
LEAST_SIZE = 0.1
NEWEST_RUNS = 20
COUNTED_RUNS = 5
# However long a server took to start, at least this share of a run was work.
LEAST_WORK = 0.1


@dataclass(frozen=True)
class Pace:
    """What one unit (a core, a GPU) does in a second."""

    decode_flops: float
    prefill_flops: float
    train_flops: float
    weight_bytes: float
    """Bytes of weights read per second while decoding."""
    step_s: float
    """What a step of server or trainer takes at least."""
    start_s: float
    """Start of a server, without its weights."""


CPU = Pace(45e9, 105e9, 37e9, weight_bytes=5.4e9, step_s=0.0, start_s=30.0)
CUDA = Pace(100e12, 150e12, 40e12, weight_bytes=1e12, step_s=0.008, start_s=90.0)


@dataclass(frozen=True)
class Machine:
    """So many units of a pace, serving a target."""

    pace: Pace
    units: int
    parameters: int
    """Weights that one token passes through."""
    target_bytes: int

    @property
    def start_s(self) -> float:
        """Return the seconds until a server answers."""
        return self.pace.start_s + self.target_bytes / LOAD_BYTES_PER_S

    def prefill_s(self, tokens: float) -> float:
        """Return the seconds for reading so many tokens of prompts."""
        return tokens * 2 * self.parameters / (self.units * self.pace.prefill_flops)

    def decode_s(self, tokens: float, concurrency: int) -> float:
        """Return the seconds for writing so many tokens with so many requests in flight."""
        # Of a mixture of experts, few requests read only some of the weights.
        read = min(self.target_bytes, concurrency * 2 * self.parameters)
        step = self.pace.step_s + read / (self.units * self.pace.weight_bytes)
        return tokens * (step / concurrency + 2 * self.parameters / (self.units * self.pace.decode_flops))

    def train_s(self, tokens: float, flops_per_token: float, sequence_tokens: int) -> float:
        """Return the seconds for training on so many tokens."""
        return tokens * (flops_per_token / self.pace.train_flops + self.pace.step_s / sequence_tokens) / self.units


@dataclass(frozen=True)
class PastRun:
    """What an earlier artifact of the kind took."""

    seconds: float
    tokens: int
    created: str


@dataclass(frozen=True)
class Circumstances:
    """What an earlier run must have in common with this one to say something about its seconds."""

    model: str
    revision: str | None
    hardware: dict[str, str]
    on_gpu: bool
    is_attached: bool
    """Whether running servers are asked instead of one that the stage starts."""


# Facts of the hardware that decide how fast it is; the memory does not.
HARDWARE_KEYS = ("machine", "cpus", "gpus", "gpu_models")


def past_run(manifest: Manifest, now: Circumstances) -> PastRun | None:
    """Return what an artifact took, or None when it was made under other circumstances."""
    made = manifest.provenance
    target, generation = made.recipe.get("target", {}), made.recipe.get("generation", {})
    if (target.get("model"), target.get("revision")) != (now.model, now.revision):
        return None
    if any(made.hardware.get(key, "") != now.hardware.get(key, "") for key in HARDWARE_KEYS):
        return None
    asks_others = manifest.kind == "corpus" and bool(generation.get("endpoints"))
    if manifest.kind == "corpus" and asks_others != now.is_attached:
        return None
    uses_device = manifest.kind in ("corpus", "states", "draft", "measurement") and not asks_others
    if uses_device and (manifest.cost.gpu_seconds > 0) != now.on_gpu:
        return None
    return PastRun(manifest.cost.seconds, manifest.cost.tokens, manifest.created)


def seconds_from(past: Sequence[PastRun], tokens: int, start_s: float) -> tuple[float, str] | None:
    """Return the seconds for so many tokens after earlier runs, and in words which; None when they do not say.

    start_s: what does not depend on the tokens. Without tokens it is the median of the seconds.
    """
    usable = [run for run in past if bool(run.tokens) == bool(tokens) and run.tokens >= LEAST_SIZE * tokens]
    if not usable:
        return None
    newest = sorted(usable, key=lambda run: run.created, reverse=True)[:NEWEST_RUNS]
    counted = sorted(newest, key=lambda run: abs(math.log(run.tokens / tokens)) if tokens else 0.0)[:COUNTED_RUNS]
    basis = f"{len(counted)} earlier run{'s' if len(counted) > 1 else ''}"
    if not tokens:
        return median(run.seconds for run in counted), basis
    rates = [max(run.seconds - start_s, LEAST_WORK * run.seconds) / run.tokens for run in counted]
    return start_s + tokens * median(rates), basis
