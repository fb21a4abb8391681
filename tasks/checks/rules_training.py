"""TRN: was the training run that left this folder finished, and which of its epochs is this."""

import math
import re
from collections.abc import Iterator

from tasks.checks.epochs import BEST_LINK
from tasks.checks.evidence import Evidence
from tasks.checks.finding import Finding, fail, good, listed, plain
from tasks.checks.rules_files import TRAINING_FILES

Findings = Iterator[Finding]

EPOCH_FOLDER = re.compile(r"\d{1,4}")
# Versions of speculators whose checkpoints these rules were tried on: from the first, below the second.
KNOWN_VERSIONS = ((0, 2), (0, 10))


def save_was_finished(evidence: Evidence) -> Findings:
    """TRN001: the epoch was saved to its end (saves are not atomic; training_state.json is written last).

    An error for the epoch that is checked; a warning for other epochs of the same run, and for a numbered folder that
    shows no other sign of a training run.
    """
    if evidence.name == "interrupted":
        yield fail("This is the folder of an interrupted epoch, not a finished one.", observed=evidence.name)
    elif EPOCH_FOLDER.fullmatch(evidence.name):
        marks = (evidence.training_state, evidence.metrics)
        if all(mark.value is None for mark in marks):
            of_a_run = evidence.run is not None or any(name in evidence.files for name in TRAINING_FILES)
            copied = "" if of_a_run else " (or this is a deployed copy in a folder with a number for a name)"
            yield fail(
                f"The save of epoch {evidence.name} was not finished: {evidence.training_state.fault}{copied}.",
                expected="training_state.json, which is written last",
                severity=None if of_a_run else "warning",
            )
    elif evidence.training_state.present and evidence.training_state.value is None:
        yield fail(f"The save was not finished: {evidence.training_state.fault}.")
    for epoch in evidence.run.epochs if evidence.run else ():
        if not epoch.is_complete and epoch.name != evidence.name:
            yield fail(
                f"Epoch {epoch.name} is incomplete and was not chosen: {listed(epoch.missing)}.",
                observed=epoch.name,
                severity="warning",
            )


def epoch_is_whole(evidence: Evidence) -> Findings:
    """TRN002: not a save from the middle of an epoch."""
    state = evidence.training_state.value
    if state is None:
        return
    step = state.get("local_step")
    if type(step) is int and step > 0:
        yield fail(
            f"This is a mid-epoch checkpoint (step {step}).",
            observed=f"local_step {step}",
            expected="local_step 0, as at an epoch's end",
        )


def links_resolve(evidence: Evidence) -> Findings:
    """TRN003: the links of the run point at epochs; numbers are zero-based. A dangling link is an error."""
    run = evidence.run
    if run is None:
        return
    for link in run.dangling:
        yield fail(
            f"{link} points at {plain(run.links[link])}, which is not there: an epoch was lost.",
            observed=f"{link} -> {plain(run.links[link])}",
            expected="an epoch folder",
            severity="error",
        )
    if not run.dangling:
        best = f"{BEST_LINK} -> {run.links[BEST_LINK]}" if BEST_LINK in run.links else f"best by loss: {run.best}"
        yield good(f"Checked epoch {evidence.name} of {len(run.epochs)} (zero-based); {best}.")


def metrics_are_there(evidence: Evidence) -> Findings:
    """TRN004: validation metrics are stored (only for epochs that were the best so far, so a note)."""
    if evidence.training_state.value is None:
        return
    if not evidence.metrics.present:
        yield fail("No val_metrics.json: this epoch was not the best when it was saved.", severity="note")
    elif evidence.metrics.value is None:
        yield fail(f"{evidence.metrics.fault}.")


def metrics_are_finite(evidence: Evidence) -> Findings:
    """TRN006: no metric is NaN or infinite; such an epoch is no candidate for the best."""
    metrics = evidence.metrics.value
    if metrics is None:
        return
    broken = [key for key, value in metrics.items() if isinstance(value, float) and not math.isfinite(value)]
    if broken:
        yield fail(
            f"val_metrics.json holds NaN or infinity ({listed(broken)}): the training broke, and this epoch cannot be "
            "the best.",
            observed=listed(broken),
            expected="finite numbers",
        )


def version_is_known(evidence: Evidence) -> Findings:
    """TRN005: written by a version of speculators that these rules know."""
    version = evidence.config.raw.get("speculators_version")
    if evidence.config.layout != "speculators" or version is None:
        return
    match = re.match(r"(\d{1,4})\.(\d{1,4})", version) if isinstance(version, str) else None
    if match is None:
        yield fail("speculators_version is not a version.", observed=version)
        return
    found = (int(match[1]), int(match[2]))
    low, high = KNOWN_VERSIONS
    if not low <= found < high:
        yield fail(
            f"Written by speculators {plain(version)}, which these rules were not tried on.",
            observed=version,
            expected=f">= {low[0]}.{low[1]}, < {high[0]}.{high[1]}",
        )
