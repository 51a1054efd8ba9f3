"""A table of outcomes below the results of a test run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def print_outcomes(
    reporter: pytest.TerminalReporter,
    title: str,
    head: Sequence[str],
    outcomes: Sequence[Sequence[str]],
) -> None:
    """Print the sorted outcomes in columns."""
    rows = [head, *sorted(outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    reporter.section(title)
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        reporter.line("  ".join(cells).rstrip())
