"""A verdict in the terminal: faults first, by severity; then what was not looked at; then one line that sums it up."""

from collections import Counter
from typing import IO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasks.checks.verdict import CheckResult, Verdict

STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan", "PASS": "bold green", "WARN": "bold yellow"}
# Width of a report that goes to a file or a pipe.
PLAIN_WIDTH = 120


def print_verdict(verdict: Verdict, file: IO[str]) -> None:
    """Write the verdict as a table."""
    console = Console(file=file, width=None if file.isatty() else PLAIN_WIDTH, highlight=False)
    if verdict.faults:
        console.print(_faults(verdict.faults))
    if verdict.not_checked:
        console.print(Text(f"Not checked at level {verdict.level}:", style="dim"))
        for line in verdict.not_checked:
            console.print(Text(f"  {line}", style="dim"))
    console.print(Text(summary(verdict), style=STYLES.get(verdict.outcome, "bold red")))


def _faults(faults: tuple[CheckResult, ...]) -> Table:
    table = Table(show_lines=True, expand=False)
    for column in ("severity", "rule", "what"):
        table.add_column(column, overflow="fold", no_wrap=column != "what")
    for result in faults:
        table.add_row(Text(result.severity, style=STYLES[result.severity]), result.rule, Text(_words(result)))
    return table


def _words(result: CheckResult) -> str:
    lines = [result.message]
    if result.observed or result.expected:
        seen = f"seen {result.observed}" if result.observed else ""
        wanted = f"expected {result.expected}" if result.expected else ""
        lines.append("; ".join(part for part in (seen, wanted) if part) + f"  (read: {result.read})")
    if result.mend:
        lines.append(f"mend: {result.mend}")
    return "\n".join(lines)


def summary(verdict: Verdict) -> str:
    """Return the verdict in one line."""
    failed = Counter(result.severity for result in verdict.faults)
    passed = sum(1 for result in verdict.results if result.outcome == "pass")
    facts = verdict.facts
    counts = ", ".join(f"{failed[one]} {one}{'s' if failed[one] != 1 else ''}" for one in ("error", "warning", "note"))
    size = f"{facts.get('num_parameters', 0):,} parameters, {facts.get('num_bytes', 0):,} bytes"
    return f"{verdict.outcome} ({verdict.level}, {facts.get('engine', '?')}): {counts}; {passed} passed; {size}"
