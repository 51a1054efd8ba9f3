"""The closing lines summarize the output of the runners."""

from tools.closing import closing_lines
from tools.job import Outcome


def outcome(output: str, status: int = 0) -> Outcome:
    """Return the outcome of a session with this output."""
    return Outcome("tests", status, 1.0, output)


def test_results_of_runners_are_summed_over_sessions() -> None:
    first = outcome("==== 3 passed, 1 skipped in 0.10s ====\n")
    second = outcome("=== 1 failed, 2 passed, 1 error in 61.00s (0:01:01) ===\n", status=1)
    third = outcome(
        "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n"
        "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n"
    )
    assert closing_lines([first, second, third]) == [
        "pytest: 5 passed, 2 failed, 1 skipped",
        "cargo: 7 passed, 0 failed, 1 skipped",
        "sessions: 2 passed, 1 failed",
    ]


def test_a_failed_test_is_listed_once() -> None:
    output = (
        "FAILED tests/test_a.py::test_one[x-y] - assert 1 == 2\n"
        "\x1b[31mERROR\x1b[0m tests/test_a.py::\x1b[1mtest_one[x-y]\x1b[0m - OSError\n"
        "test ring::wraps ... FAILED\n"
        "ERROR in plain prose\n"
    )
    assert closing_lines([outcome(output, status=1)]) == [
        "failed: tests/test_a.py::test_one[x-y] - assert 1 == 2",
        "failed: ring::wraps",
        "sessions: 0 passed, 1 failed",
    ]


def test_a_test_that_passes_on_rerun_is_reported_as_unsteady() -> None:
    output = (
        "FAILED tests/test_a.py::test_one[x-y] - TimeoutError: no answer\n"
        "ERROR tests/test_a.py::test_one[x-y] - assert not left\n"
        "===== 1 failed, 31 passed, 1 error in 4.00s =====\n"
        "1 passed in 1.00s\n"
        "UNSTEADY tests/test_a.py::test_one[x-y] - TimeoutError: no answer\n"
        "UNSTEADY tests/test_a.py::test_one[x-y] - assert not left\n"
        "UNSTEADY in plain prose\n"
    )
    assert closing_lines([outcome(output)]) == [
        "unsteady: tests/test_a.py::test_one[x-y] - TimeoutError: no answer",
        "pytest: 32 passed, 0 failed",
        "sessions: 1 passed, 0 failed",
    ]


def test_color_does_not_hide_a_summary() -> None:
    colored = (
        "\x1b[32m=== \x1b[32m\x1b[1m4 passed\x1b[0m\x1b[32m in 0.01s\x1b[0m\x1b[32m ===\x1b[0m"
    )
    assert closing_lines([outcome(colored)])[0] == "pytest: 4 passed, 0 failed"


def test_lines_that_only_look_like_summaries_are_ignored() -> None:
    assert closing_lines([outcome("3 passed\n=== FAILURES ===\n")]) == [
        "sessions: 1 passed, 0 failed"
    ]
