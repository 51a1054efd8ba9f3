"""Prints a table of the planted hangs after the tests."""

from __future__ import annotations

import pytest

HEAD = ("hang", "seed", "culprit", "found as", "at", "after")
ROWS = pytest.StashKey[list[tuple[str, ...]]]()


@pytest.fixture
def outcomes(request: pytest.FixtureRequest) -> list[tuple[str, ...]]:
    """The rows of the table so far."""
    rows: list[tuple[str, ...]] = request.config.stash.setdefault(ROWS, [])
    return rows


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    rows = [HEAD, *sorted(terminalreporter.config.stash.get(ROWS, []))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    terminalreporter.section("planted hangs, on two hosts")
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        terminalreporter.line("  ".join(cells).rstrip())
