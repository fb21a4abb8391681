"""What a rule hands back: findings in plain ASCII text, whatever bytes the draft under check is made of."""

from dataclasses import dataclass
from typing import Any

from tasks.checks.verdict import Outcome, Severity

# Longest piece of foreign text (a tensor name, a config value) that a message repeats.
MAX_QUOTED_CHARS = 160
# Faults of one kind that a message lists one by one.
MAX_LISTED = 12


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a rule found; severity None means the rule's own."""

    outcome: Outcome
    message: str
    observed: str = ""
    expected: str = ""
    mend: str = ""
    severity: Severity | None = None


def plain(value: object) -> str:
    """Return value as printable ASCII, cut to a readable length; safe for terminals, JSON and pydantic."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (RecursionError, ValueError):
        return "a value too large to print"
    if len(text) > MAX_QUOTED_CHARS:
        text = f"{text[:MAX_QUOTED_CHARS]}..."
    return "".join(char if " " <= char <= "~" else char.encode("unicode_escape").decode("ascii") for char in text)


def listed(values: Any) -> str:
    """Return names joined by commas, the first dozen of them and how many more there are."""
    names = [plain(value) for value in values]
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def fail(
    message: str, *, observed: object = "", expected: object = "", mend: str = "", severity: Severity | None = None
) -> Finding:
    """Return a failed finding; message is ours, observed and expected may be anything."""
    return Finding("fail", message, plain(observed), plain(expected), mend, severity)


def skip(message: str) -> Finding:
    """Return the finding of a rule that had nothing to judge by."""
    return Finding("skipped", message)


def good(message: str, *, observed: object = "") -> Finding:
    """Return a passed finding that says more than the rule's title."""
    return Finding("pass", message, plain(observed))
