"""Two arms side by side: speed-up, acceptance, identical outputs, and how sure a difference is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from tasks.bench.measurement import Acceptance, PromptResult, Speed
from tasks.errors import EvidenceError

# C.2 of the measuring rules: enough draws that the ends of a 95 % interval move by less than their third digit.
DEFAULT_DRAWS = 10_000
_INTERVAL_PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True)
class SpeedRatio:
    """Output tok/s of an arm over another at one concurrency: one ratio per repeat, and their median."""

    concurrency: int
    per_repeat: tuple[float, ...]
    median: float


@dataclass(frozen=True)
class Agreement:
    """How many prompts both arms answered with exactly the same token ids."""

    num_prompts: int
    num_identical: int

    @property
    def fraction(self) -> float:
        """Return the share of identical answers, 0 to 1."""
        return self.num_identical / self.num_prompts


@dataclass(frozen=True)
class AcceptanceDifference:
    """Acceptance length of one arm against another on one data set; relative 0.02 means 2 % longer."""

    dataset: str
    absolute: float
    relative: float


@dataclass(frozen=True)
class Bootstrap:
    """Relative change of the macro mean acceptance length: point, 95 % interval, probability of being better."""

    point: float
    low: float
    high: float
    p_better: float


def speed_ratios(arm: Sequence[Speed], reference: Sequence[Speed]) -> tuple[SpeedRatio, ...]:
    """Return the speed-up of arm over reference per concurrency, ascending, paired by repeat.

    Raises EvidenceError when the two were not measured at the same concurrencies and repeats, or on other prompts.
    """
    ours, theirs = _by_block(arm), _by_block(reference)
    if not ours or ours.keys() != theirs.keys():
        raise EvidenceError(
            f"speeds do not pair: one arm has (concurrency, repeat) {sorted(ours)}, the other {sorted(theirs)}; "
            "expected the same blocks in both"
        )
    ratios: dict[int, list[float]] = {}
    for block in sorted(ours):
        if ours[block].num_prompts != theirs[block].num_prompts:
            raise EvidenceError(f"speeds do not pair: block {block} used different numbers of prompts in the two arms")
        ratios.setdefault(block[0], []).append(ours[block].tok_per_s / theirs[block].tok_per_s)
    return tuple(SpeedRatio(concurrency, tuple(found), median(found)) for concurrency, found in ratios.items())


def acceptance_difference(arm: Acceptance, reference: Acceptance) -> AcceptanceDifference:
    """Return how much longer arm's acceptance length is. Raises EvidenceError on two different data sets."""
    if arm.dataset != reference.dataset:
        raise EvidenceError(f"acceptance on {arm.dataset!r} cannot be compared with that on {reference.dataset!r}")
    absolute = arm.acceptance_length - reference.acceptance_length
    return AcceptanceDifference(arm.dataset, absolute, absolute / reference.acceptance_length)


def output_agreement(arm: Sequence[PromptResult], reference: Sequence[PromptResult]) -> Agreement:
    """Return how many prompts got identical token ids in both arms; meaningful for greedy answers only.

    In bf16 this is below 100 % even between two baselines: a batch of another shape rounds in another order, and
    where two logits are that close the text forks. So compare it with a baseline at another concurrency.
    """
    pairs = _paired(arm, reference)
    return Agreement(len(pairs), sum(ours.output_sha256 == theirs.output_sha256 for ours, theirs in pairs))


def paired_bootstrap(
    arm: Sequence[PromptResult],
    reference: Sequence[PromptResult],
    *,
    num_draws: int = DEFAULT_DRAWS,
    seed: int = 0,
) -> Bootstrap:
    """Return how sure it is that arm's acceptance length, macro mean over data sets, beats reference's.

    Prompts are drawn with replacement inside each data set, the same draw for both arms, because the steps of one
    prompt are correlated and the prompts are shared. Ties count half in p_better, so an arm against itself gives 0.5.
    Raises EvidenceError when the arms do not hold the same prompts or a data set has no verify step.
    """
    by_dataset: dict[str, list[tuple[PromptResult, PromptResult]]] = {}
    for pair in _paired(arm, reference):
        by_dataset.setdefault(pair[0].dataset, []).append(pair)
    generator = np.random.default_rng(seed)
    totals = np.zeros((2, num_draws + 1))
    for dataset in sorted(by_dataset):
        totals += _drawn_lengths(by_dataset[dataset], num_draws, generator)
    effect = totals[0] / totals[1] - 1
    point, draws = float(effect[0]), effect[1:]
    low, high = np.percentile(draws, _INTERVAL_PERCENTILES)
    better = np.mean(draws > 0) + np.mean(draws == 0) / 2
    return Bootstrap(point=point, low=float(low), high=float(high), p_better=float(better))


def _drawn_lengths(
    pairs: Sequence[tuple[PromptResult, PromptResult]], num_draws: int, generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return [2, num_draws + 1] acceptance lengths of both arms; column 0 is the data as measured."""
    counts = np.array([[(r.num_accepted, r.num_steps) for r in pair] for pair in pairs], dtype=np.int64)
    if not counts[:, :, 1].sum(axis=0).all():
        raise EvidenceError(f"no verify step on data set {pairs[0][0].dataset!r} in one arm; nothing to compare there")
    chosen = generator.integers(0, len(pairs), size=(num_draws, len(pairs)))
    lengths = np.empty((2, num_draws + 1))
    for side in (0, 1):
        accepted, steps = counts[:, side, 0], counts[:, side, 1]
        lengths[side, 0] = 1 + accepted.sum() / steps.sum()
        # A draw of nothing but one-token answers has no step and nothing accepted: its length is 1.
        lengths[side, 1:] = 1 + accepted[chosen].sum(axis=1) / np.maximum(steps[chosen].sum(axis=1), 1)
    return lengths


def _paired(arm: Sequence[PromptResult], reference: Sequence[PromptResult]) -> list[tuple[PromptResult, PromptResult]]:
    ours, theirs = _by_prompt(arm), _by_prompt(reference)
    if not ours or ours.keys() != theirs.keys():
        unpaired = sorted(f"{dataset}:{prompt}" for dataset, prompt in ours.keys() ^ theirs.keys())
        raise EvidenceError(f"the arms answered different prompts: {len(unpaired)} without a partner, {unpaired[:3]}")
    pairs = [(result, theirs[key]) for key, result in ours.items()]
    for ours_result, theirs_result in pairs:
        if ours_result.prompt_tokens != theirs_result.prompt_tokens:
            raise EvidenceError(
                f"prompt {ours_result.prompt_id!r} had {ours_result.prompt_tokens} tokens in one arm and "
                f"{theirs_result.prompt_tokens} in the other; expected the same chat template, applied once, in both"
            )
    return pairs


def _by_prompt(results: Sequence[PromptResult]) -> Mapping[tuple[str, str], PromptResult]:
    found = {(result.dataset, result.prompt_id): result for result in results}
    if len(found) != len(results):
        raise EvidenceError(f"{len(results)} results name only {len(found)} different prompts; expected each once")
    return found


def _by_block(speeds: Sequence[Speed]) -> Mapping[tuple[int, int], Speed]:
    found = {(speed.concurrency, speed.repeat): speed for speed in speeds}
    if len(found) != len(speeds):
        raise EvidenceError("a speed block (concurrency, repeat) was measured twice in one arm; expected each once")
    return found
