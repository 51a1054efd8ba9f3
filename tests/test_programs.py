"""The harness for examples and documents: it must detect every kind of failure."""

import os
import signal
from pathlib import Path

import pytest

from tests.programs import missing_line, run_program

EXPECTED = [
    ("a\nb\nc", ["a", "c"], None),
    ("a\nb", ["b", "a"], "a"),
    ("took 12 ms", ["took ... ms"], None),
    ("took 12 s", ["took ... ms"], "took ... ms"),
    ("rank 0: x of y", ["rank ...: ... of y"], None),
    ("aba", ["ab...ba"], "ab...ba"),
    ("", ["..."], "..."),
    ("  indented", ["indented"], None),
]


@pytest.mark.parametrize(("printed", "expected", "missing"), EXPECTED)
def test_the_first_missing_line_is_found(
    printed: str, expected: list[str], missing: str | None
) -> None:
    assert missing_line(printed, expected) == missing


def test_the_output_of_a_successful_program_is_returned(tmp_path: Path) -> None:
    assert run(tmp_path, "print('hello')") == "hello\n"


def test_a_failure_is_shown_with_the_printed_output(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"(?s)ended with 1.*before.*ZeroDivisionError"):
        run(tmp_path, "print('before'); 1 / 0")


def test_process_left_behind_is_named(tmp_path: Path) -> None:
    code = "import os; os.fork() or os.execvp('tail', ['tail', '-f', '/dev/null'])"
    with pytest.raises(AssertionError, match="tail") as caught:
        run(tmp_path, code)
    pid = str(caught.value).split("pid ")[1].split(":")[0]
    os.kill(int(pid), signal.SIGKILL)


def test_a_program_that_takes_too_long_is_killed_and_its_stacks_are_shown(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r'(?s)took more than.*program.py", line 1'):
        run(tmp_path, "import signal; signal.pause()", limit_s=2)


def run(folder: Path, code: str, limit_s: float = 30) -> str:
    """Run code as a program."""
    script = folder / "program.py"
    script.write_text(code)
    return run_program(script, cwd=folder, limit_s=limit_s)
