"""Prints a table of the planted bugs after the tests."""

from __future__ import annotations

import pytest

HEAD = ("bug", "replay of the case", "generated test", "after the correction")
ROWS = pytest.StashKey[list[tuple[str, str, str, str]]]()


@pytest.fixture
def outcomes(request: pytest.FixtureRequest) -> list[tuple[str, str, str, str]]:
    """The rows of the table so far."""
    rows: list[tuple[str, str, str, str]] = request.config.stash.setdefault(ROWS, [])
    return rows


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    rows = [HEAD, *sorted(terminalreporter.config.stash.get(ROWS, []))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    terminalreporter.section("planted bugs, recorded on two hosts and replayed without them")
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        terminalreporter.line("  ".join(cells).rstrip())
