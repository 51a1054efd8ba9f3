"""A job shows its output, and is killed with all its processes if necessary."""

import sys

import pytest

from tools.job import Job


def python(code: str, limit_s: float = 60) -> Job:
    """Return a job that runs Python code."""
    return Job("job", [sys.executable, "-c", code], limit_s)


def test_output_of_a_quiet_job_is_shown_in_full_when_it_exits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcome = python("print('one'); print('two')").run(live=False)
    assert not outcome.failed
    assert outcome.output == "one\ntwo\n"
    shown = capsys.readouterr().out.splitlines()
    assert shown[:3] == ["== job started", "one", "two"]
    assert shown[3].startswith("== job passed after")


def test_a_failure_is_reported_with_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = python("raise SystemExit(3)").run(live=True)
    assert outcome.failed
    assert "failed with status 3" in capsys.readouterr().out


def test_the_time_limit_kills_the_job_and_its_children() -> None:
    # The child inherits the pipe: if it survived, reading the output would not end.
    child = "import signal; signal.pause()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert python(code, limit_s=0.5).run(live=False).status == -9


def test_a_stopped_job_never_starts() -> None:
    job = python("print('ran')")
    job.stop()
    outcome = job.run(live=False)
    assert outcome.failed
    assert outcome.output == ""


def test_cpu_time_includes_child_processes() -> None:
    spin = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}])"
    assert python(code).run(live=False).cpu_seconds >= 0.2
