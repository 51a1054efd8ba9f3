"""Prints a table of the planted hangs and deaths after the tests."""

from __future__ import annotations

import pytest

from tests.hosts.cluster.two_hosts import cluster as cluster
from tests.outcome_table import print_outcomes

HEAD = ("planted", "seed", "culprit", "found as", "at", "after")
ROWS = pytest.StashKey[list[tuple[str, ...]]]()


#: How much longer a report may take while other programs use the processors.
BUSY_TIMES = 5


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option for the limits that the guide states."""
    parser.addoption(
        "--quiet-machine",
        action="store_true",
        help="Nothing else runs on this machine: require the times that the guide states.",
    )


@pytest.fixture
def limit_times(request: pytest.FixtureRequest) -> int:
    """How many times the limit that the guide states a report may take."""
    return 1 if request.config.getoption("--quiet-machine") else BUSY_TIMES


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
