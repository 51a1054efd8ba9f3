"""A failing fuzz target reports the input and the command that reproduces the failure."""

from pathlib import Path

import pytest

from tools import fuzz
from tools.workspace import read_toml

DONE = (
    "#99\tDONE   cov: 7 ft: 8 corp: 5/20b lim: 4 exec/s: 3 rss: 31Mb\nDone 99 runs in 2 second(s)\n"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESH_CACHE", str(tmp_path))


def target(tmp_path: Path, script: str) -> fuzz.Target:
    """Return a target that is a script; libFuzzer's options are its arguments."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return fuzz.Target("frame", (str(program),))


def test_a_successful_run_is_reported_in_one_line(tmp_path: Path) -> None:
    (found,) = fuzz._run_all([target(tmp_path, f"printf '%s' '{DONE}'")], seconds=1, jobs=1)
    assert not found.failed
    words = " ".join(found.line().split())
    assert words == "frame 99 runs 7 edges 5 inputs kept 31 MB"


def test_a_failure_names_the_input_and_the_command(tmp_path: Path) -> None:
    script = "echo panicked; echo 'Test unit written to /where/crash-1'; exit 77"
    (found,) = fuzz._run_all([target(tmp_path, script)], seconds=1, jobs=1)
    assert found.failed
    report = found.report()
    assert "panicked" in report
    assert "input: /where/crash-1" in report
    assert "nox -s fuzz -- --target frame --input /where/crash-1" in report


def test_an_input_that_is_fast_when_repeated_is_not_a_failure(tmp_path: Path) -> None:
    late = tmp_path / "timeout-1"
    script = f"""
        case "$1" in *timeout-1) exit 0;; esac
        if [ -e {late} ]; then printf '%s' '{DONE}'; exit 0; fi
        touch {late}; echo 'Test unit written to {late}'; exit 70
    """
    (found,) = fuzz._run_all([target(tmp_path, script)], seconds=1, jobs=1)
    assert not found.failed


def test_an_input_that_times_out_again_is_a_failure(tmp_path: Path) -> None:
    script = "echo 'Test unit written to /where/timeout-1'; exit 70"
    (found,) = fuzz._run_all([target(tmp_path, script)], seconds=1, jobs=1)
    assert "input: /where/timeout-1" in found.report()


def test_a_run_that_exits_without_output_is_a_failure(tmp_path: Path) -> None:
    (found,) = fuzz._run_all([target(tmp_path, "exit 0")], seconds=1, jobs=1)
    assert found.failed


def test_every_target_has_a_limit_and_a_seed() -> None:
    manifest = read_toml(fuzz.CRATE / "Cargo.toml")
    built = sorted(one["name"] for one in manifest["bin"])
    assert built == sorted(path.stem for path in (fuzz.CRATE / "targets").glob("*.rs"))
    names = [one.name for one in fuzz._targets(Path("built"))]
    assert names == sorted(manifest["package"]["metadata"]["input-len-max"])
    assert set(names) > set(built)
    assert all(any((fuzz.CRATE / "seeds" / name).iterdir()) for name in names)
