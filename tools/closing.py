"""Summarizes the output of each test runner in one closing line."""

import re
from collections import Counter
from collections.abc import Iterable

from tools.job import Outcome

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_PYTEST = re.compile(
    r"^=+ (?:\d+ (?:passed|failed|errors?|skipped|xfailed)\b|no tests ran).* in .*=+$"
)
_CARGO = re.compile(r"^test result: ")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::\S+)(?: - (.*))?$|^test (\S+) \.\.\. FAILED$")
_UNSTEADY = re.compile(r"^UNSTEADY (\S+::\S+) - (.*)$")
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|ignored|xfailed)\b")

#: The category of each word in a runner's summary; an expected failure counts as passed.
_MEANING = {
    "passed": "passed",
    "xfailed": "passed",
    "failed": "failed",
    "error": "failed",
    "errors": "failed",
    "skipped": "skipped",
    "ignored": "skipped",
}


def closing_lines(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the failures, then a line like `pytest: 31 passed, 0 failed` for every runner.

    A test that passed when it was run again counts as passed, and is listed as unsteady.
    """
    outcomes = list(outcomes)
    output = _lines_of(outcomes)
    passed_then = _reasons(output, _UNSTEADY)
    failed = _reasons(output, _FAILED)
    failed = {name: reason for name, reason in failed.items() if name not in passed_then}
    lines = [f"failed: {_named(name, reason)}" for name, reason in failed.items()]
    lines += [f"unsteady: {_named(name, reason)}" for name, reason in passed_then.items()]
    for name, pattern in (("pytest", _PYTEST), ("cargo", _CARGO)):
        summaries = [line for line in output if pattern.match(line)]
        if summaries:
            counts = _add_up(summaries)
            if name == "pytest":
                counts["passed"] += len(passed_then)
                # It may have been counted twice: for the test itself and for its teardown.
                counts["failed"] -= sum(_UNSTEADY.match(line) is not None for line in output)
            lines.append(_line(name, counts))
    sessions = Counter("failed" if one.failed else "passed" for one in outcomes)
    return [*lines, _line("sessions", sessions)]


def unsteady(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Return the tests that failed and then passed when they were run again, with the reasons."""
    return _reasons(_lines_of(outcomes), _UNSTEADY)


def _lines_of(outcomes: Iterable[Outcome]) -> list[str]:
    return [_COLOR.sub("", line) for one in outcomes for line in one.output.splitlines()]


def _reasons(output: Iterable[str], pattern: re.Pattern[str]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for match in filter(None, map(pattern.match, output)):
        # A test that fails, and fails again in its teardown, counts once.
        reasons.setdefault(match[1] or match[3], match[2] or "")
    return reasons


def _named(name: str, reason: str) -> str:
    return f"{name} - {reason}" if reason else name


def _add_up(summaries: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for summary in summaries:
        for number, word in _COUNT.findall(summary):
            counts[_MEANING[word]] += int(number)
    return counts


def _line(name: str, counts: Counter[str]) -> str:
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    return f"{name}: {counts['passed']} passed, {counts['failed']} failed{skipped}"
