"""TEN010 to TEN012: what the tensors hold."""

from collections.abc import Iterator

from tasks.checks.evidence import Evidence
from tasks.checks.finding import Finding, fail, good, listed

Findings = Iterator[Finding]

# Spread of trained or initialised weights; outside, something was scaled, summed or never written.
SANE_STD = (1e-6, 10.0)
ONE_DIMENSION = 1


def values_are_finite(evidence: Evidence) -> Findings:
    """TEN010: no NaN and no infinity. speculators starts embedding and head as NaN, so NaN means: never loaded."""
    for name, scan in evidence.scan.tensors.items():
        if scan.num_nan or scan.num_inf:
            yield fail(
                f"{name} holds {scan.num_nan} NaN and {scan.num_inf} infinite values: served, it accepts nothing.",
                observed=f"{scan.num_nan} NaN, {scan.num_inf} Inf",
                expected="finite values",
            )


def values_vary(evidence: Evidence) -> Findings:
    """TEN011: no weight matrix is constant or of absurd spread; norms that are exactly 1 are a note.

    A norm of ones is what every draft starts from; in bf16 a short training can leave it there.
    """
    untouched: list[str] = []
    for name, scan in evidence.scan.tensors.items():
        tensor = evidence.tensors[name]
        if scan.num_nan or scan.num_inf or tensor.num_elements < 2:
            continue
        if len(tensor.shape) == ONE_DIMENSION:
            if scan.is_constant and scan.value == 1.0:
                untouched.append(name)
            elif scan.is_constant and not name.endswith(".bias"):
                yield fail(f"{name} is {scan.value:g} everywhere.", observed=scan.value, expected="a trained norm")
        elif scan.is_constant:
            yield fail(f"{name} is {scan.value:g} everywhere: it was never trained or loaded.", observed=scan.value)
        elif not SANE_STD[0] <= scan.std <= SANE_STD[1]:
            low, high = SANE_STD
            yield fail(f"{name} has a spread of {scan.std:.3g}.", observed=scan.std, expected=f"{low:g} to {high:g}")
    if untouched:
        yield fail(
            f"{listed(untouched)}: exactly 1 everywhere. Was it trained for long enough?", observed=1, severity="note"
        )


def bytes_are_new(evidence: Evidence) -> Findings:
    """TEN012: the weights are not byte for byte those of the epoch before."""
    sha256 = evidence.scan.sha256
    before = evidence.training.get("previous_sha256")
    if isinstance(before, str) and before in sha256.values():
        yield fail("The weights are byte for byte those of the epoch before: nothing was learnt.", observed=before)
    else:
        yield good("sha256 " + ", ".join(f"{file} {digest}" for file, digest in sha256.items()))
