"""A slow step is announced, and its output is shown only if it fails."""

import subprocess
import sys

import pytest

from tools.steps import VERBOSE, run_quietly, step

CHATTER = [sys.executable, "-c", "print('compiling'); raise SystemExit({})"]


def command(status: int) -> list[str]:
    """Return a command that prints something and exits with a status."""
    return [*CHATTER[:2], CHATTER[2].format(status)]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable `-v`."""
    monkeypatch.delenv(VERBOSE, raising=False)


def test_a_step_is_announced_and_its_duration_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with step("building", "about 1 minute"):
        assert capsys.readouterr().err == "building (about 1 minute) ...\n"
    assert capsys.readouterr().err == "building: 0 s\n"


def test_output_of_a_command_that_succeeds_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    run_quietly(command(0))
    assert capfd.readouterr().err == ""


def test_output_of_a_command_that_fails_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run_quietly(command(3))
    assert "compiling" in capfd.readouterr().err


def test_verbose_shows_the_output(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VERBOSE, "1")
    run_quietly(command(0))
    assert "compiling" in capfd.readouterr().err
