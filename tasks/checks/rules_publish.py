"""CFG007 and CFG008: can the draft be handed on, so that it serves without a word about its target?"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from tasks.checks.evidence import Evidence
from tasks.checks.finding import Finding, fail, plain

Findings = Iterator[Finding]


def serves_alone(evidence: Evidence) -> Findings:
    """CFG007: `vllm serve DRAFT` finds its target and the number of tokens to propose.

    An error, although the long form (--speculative-config) works without: a draft is made to be handed on, and one
    that names no target cannot be. Set the severity to "warning" where only the long form is used.
    """
    if evidence.config.layout != "speculators":
        return
    inner = evidence.config.raw.get("speculators_config")
    inner = inner if isinstance(inner, dict) else {}
    tokens = _first_method(inner).get("speculative_tokens")
    if type(tokens) is not int or tokens < 1:
        yield fail(
            "Not fit to publish: `vllm serve` of this draft alone fails, because "
            "speculators_config.proposal_methods[0].speculative_tokens is missing.",
            observed=inner.get("proposal_methods"),
            expected="at least one method with speculative_tokens >= 1",
        )
    name = verifier_name(evidence)
    if not isinstance(name, str) or not name.strip():
        yield fail(
            "Not fit to publish: `vllm serve` of this draft alone fails, because it names no target "
            "(speculators_config.verifier.name_or_path).",
            observed=name,
            expected="a model id",
            mend="write the target's model id there (--fix OUT --publish-as ID)",
        )


def verifier_travels(evidence: Evidence) -> Findings:
    """CFG008: the target is named by an id, not by a path of one machine.

    An error where the path is not even there: whoever gets this draft cannot serve it alone. A note where it exists:
    that is what every training run leaves behind, and publishing rewrites it.
    """
    name = verifier_name(evidence)
    if not isinstance(name, str) or not _is_local_path(name):
        return
    if _exists(name):
        message = (
            "The target is recorded as a folder of this machine; it has to be a model id before the draft is published."
        )
    else:
        message = (
            f"Not fit to publish: the target is recorded as the local path {plain(name)}, which is not on this "
            "machine; serving works only with --speculative-config beside an explicit --model."
        )
    yield fail(
        message,
        observed=name,
        expected="a model id such as owner/name",
        mend="write the target's model id there (--fix OUT --publish-as ID)",
        severity="note" if _exists(name) else None,
    )


def verifier_name(evidence: Evidence) -> Any:
    """Return what the config names as its target, whatever it is."""
    inner = evidence.config.raw.get("speculators_config")
    verifier = inner.get("verifier") if isinstance(inner, dict) else None
    return verifier.get("name_or_path") if isinstance(verifier, dict) else None


def _first_method(inner: dict[str, Any]) -> dict[str, Any]:
    methods = inner.get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods else None
    return first if isinstance(first, dict) else {}


def _is_local_path(name: str) -> bool:
    windows = len(name) > 2 and name[1:3] in (":\\", ":/")
    return PurePosixPath(name).is_absolute() or windows or name.startswith(("~", "./", "../", "file:"))


def _exists(name: str) -> bool:
    try:
        return Path(name).expanduser().is_dir()
    except (OSError, ValueError, RuntimeError):
        return False
