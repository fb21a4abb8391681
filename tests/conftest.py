"""Prints, at the end of a run, the tables that tests filled as Markdown.

A test adds a cell with record_property("cell", (table, row, column, text)); see the fixture `cell`.
"""

from collections.abc import Callable

import pytest
from _pytest.terminal import TerminalReporter

Cell = Callable[[str, str, str, str], None]
Tables = dict[str, dict[str, dict[str, str]]]


@pytest.fixture
def cell(record_property: Callable[[str, object], None]) -> Cell:
    """Give a function that puts a text into a table that is printed at the end: table, row, column, text."""
    return lambda table, row, column, text: record_property("cell", (table, row, column, text))


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print the tables of the tests that ran."""
    tables: Tables = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, value in getattr(report, "user_properties", []):
                if name == "cell":
                    table, row, column, text = value
                    tables.setdefault(table, {}).setdefault(row, {})[column] = text
    for title, rows in tables.items():
        terminalreporter.section(title)
        for line in as_markdown(rows):
            terminalreporter.write_line(line)


def as_markdown(rows: dict[str, dict[str, str]]) -> list[str]:
    """Return a table, its columns in the order in which they first came."""
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    lines = [["", *columns], ["---"] * (len(columns) + 1)]
    lines += [[row, *(cells.get(column, "") for column in columns)] for row, cells in rows.items()]
    return [f"| {' | '.join(line)} |" for line in lines]
