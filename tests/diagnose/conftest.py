"""Prints a table of the planted hangs and deaths after the tests."""

from __future__ import annotations

import pytest

from tests.hosts.crew.two_hosts import crew as crew
from tests.outcome_table import print_outcomes

HEAD = ("planted", "seed", "culprit", "found as", "at", "after")
ROWS = pytest.StashKey[list[tuple[str, ...]]]()


@pytest.fixture
def outcomes(request: pytest.FixtureRequest) -> list[tuple[str, ...]]:
    """The rows of the table so far."""
    rows: list[tuple[str, ...]] = request.config.stash.setdefault(ROWS, [])
    return rows


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    rows = terminalreporter.config.stash.get(ROWS, [])
    title = "planted hangs and memory deaths, on two hosts"
    print_outcomes(terminalreporter, title, HEAD, rows)
