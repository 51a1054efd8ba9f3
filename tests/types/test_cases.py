"""mypy and pyright accept and reject the right lines: each file of cases/ is a program for both.

A line that ends in `# expect-error` must be rejected by both checkers; all other lines must be
accepted by both. A case checks the type of a value with `typing.assert_type`.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.types import checkers

CASES = sorted((Path(__file__).resolve().parent / "cases").glob("*.py"))

#: The marker may be followed by a reason: `# expect-error: step takes an int`.
MARKER = re.compile(r"# expect-error(?:: .+)?$")

Checker = Callable[[Sequence[Path]], checkers.Complaints]


def expected_lines(case: Path) -> set[int]:
    """Return the lines of a case that must be rejected."""
    lines = case.read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if MARKER.search(line)}


@cache
def complaints(checker: Checker) -> checkers.Complaints:
    """Run a checker once over all cases, because its startup is most of the cost."""
    return checker(CASES)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", [checkers.mypy, checkers.pyright], ids=lambda one: one.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_case(case: Path, checker: Checker) -> None:
    found = complaints(checker)[case]
    expected = expected_lines(case)
    accepted = sorted(expected - found.keys())
    assert not accepted, f"lines that should be refused are accepted: {accepted}"
    refused = {line: text for line, text in found.items() if line not in expected}
    assert not refused, "lines that should be accepted are refused"


def test_every_case_expects_an_error_or_asserts_a_type() -> None:
    idle = [c.name for c in CASES if not expected_lines(c) and "assert_type" not in c.read_text()]
    assert idle == []
