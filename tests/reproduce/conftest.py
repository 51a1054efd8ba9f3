"""Prints a table of the planted bugs after the tests."""

from __future__ import annotations

import pytest

from tests.hosts.cluster.two_hosts import cluster as cluster
from tests.outcome_table import print_outcomes

HEAD = ("bug", "replay of the case", "generated test", "after the correction")
ROWS = pytest.StashKey[list[tuple[str, str, str, str]]]()


@pytest.fixture
def outcomes(request: pytest.FixtureRequest) -> list[tuple[str, str, str, str]]:
    """The rows of the table so far."""
    rows: list[tuple[str, str, str, str]] = request.config.stash.setdefault(ROWS, [])
    return rows


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    rows = terminalreporter.config.stash.get(ROWS, [])
    title = "planted bugs, recorded on two hosts and replayed without them"
    print_outcomes(terminalreporter, title, HEAD, rows)
