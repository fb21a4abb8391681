"""FIL: the files of the draft are whole, are what they claim to be, and nothing else is in the way."""

from collections.abc import Iterator

from tasks.checks.evidence import Evidence
from tasks.checks.finding import Finding, fail, listed, plain
from tasks.checks.header import HeaderFault

Findings = Iterator[Finding]

TRAINING_FILES = ("optimizer_state_dict.pt", "scheduler_state_dict.pt", "training_state.json", "train_command.txt")
PICKLE_ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
CODE_ENDINGS = (".py",)
# Tensor-free suffixes that belong to a pickle of weights: vLLM may pick it up when no safetensors file is there.
INCOMPLETE = ("truncated", "empty", "trailing_bytes", "gap", "size_mismatch", "out_of_range")


def weights_are_there(evidence: Evidence) -> Findings:
    """FIL001: there is a safetensors file, and every file that the index names opens and holds its tensors."""
    weights = evidence.weights
    for fault in weights.index_faults:
        yield fail(f"{fault[:1].upper()}{fault[1:]}.", expected="every shard of the index, whole")
    if not weights.files and not weights.index_faults:
        pickles = [name for name in evidence.files if name.endswith(PICKLE_ENDINGS)]
        more = f" vLLM would try {listed(pickles)} instead." if pickles else ""
        yield fail(f"No *.safetensors file here.{more}", observed=sorted(evidence.files), expected="model.safetensors")


def weights_are_whole(evidence: Evidence) -> Findings:
    """FIL002: each weight file is a sound safetensors file of exactly the length its header states."""
    for fault in evidence.weights.faults:
        yield fail(_sentence(fault), observed=fault.observed, expected=fault.expected, mend=_what_to_do(fault))


def _sentence(fault: HeaderFault) -> str:
    kind = "truncated or changed" if fault.kind == "size_mismatch" else fault.kind.replace("_", " ")
    sizes = f" ({fault.observed} instead of {fault.expected})" if fault.kind in ("truncated", "trailing_bytes") else ""
    return f"{plain(fault.file)} is not usable ({kind}): {fault.message}{sizes}."


def _what_to_do(fault: HeaderFault) -> str:
    if fault.kind == "lfs_pointer":
        return "git lfs pull, or download the file itself"
    return "copy the file again from where it was saved" if fault.kind in INCOMPLETE else ""


def one_weight_set(evidence: Evidence) -> Findings:
    """FIL003: one set of weights, since vLLM loads every safetensors file without an index and the last one wins."""
    weights = evidence.weights
    if not weights.has_index and len(weights.files) > 1:
        yield fail(
            f"{len(weights.files)} weight files and no index: vLLM loads all of them, and the last one wins.",
            observed=list(weights.files),
            expected="one file, or an index",
        )
    if weights.loose:
        yield fail(
            f"Weight files beside the index that it does not name: {listed(weights.loose)}.",
            observed=list(weights.loose),
            mend="remove them",
        )


def no_training_state(evidence: Evidence) -> Findings:
    """FIL004: no optimizer or scheduler state, and no pickle, is shipped.

    A warning in a folder that is to be served; a note in a numbered epoch, where that state is what a resume needs.
    """
    dead = training_files(evidence.files)
    if not dead:
        return
    total = sum(evidence.files[name] for name in dead)
    epoch = evidence.training_state.value is not None
    yield fail(
        f"Training state ({total} bytes: {listed(dead)}) is dead weight for serving"
        + ("; right in a training run, wrong in what is deployed." if epoch else "."),
        observed=f"{total} bytes",
        expected="config.json and the safetensors files only",
        mend="leave these files out of the deployed folder (--fix OUT does)",
        severity="note" if epoch else None,
    )


def training_files(files: object) -> list[str]:
    """Return the names that hold training state or pickles."""
    names = sorted(files) if isinstance(files, dict) else []
    return [name for name in names if name in TRAINING_FILES or name.endswith(PICKLE_ENDINGS)]


def no_custom_code(evidence: Evidence) -> Findings:
    """FIL005: no Python code is shipped, and the config does not ask for any.

    A note in a training run, where speculators always writes config.py; a warning elsewhere.
    """
    code = [name for name in evidence.files if name.endswith(CODE_ENDINGS)]
    mapped = "auto_map" in evidence.config.raw
    if code or mapped:
        parts = [listed(code)] if code else []
        parts += ["auto_map in config.json"] if mapped else []
        yield fail(
            f"Custom code ({' and '.join(parts)}) is not needed by vLLM and should not be shipped.",
            observed=", ".join(parts),
            mend="leave it out of the deployed folder (--fix OUT does)",
            severity="note" if evidence.training_state.value is not None else None,
        )
