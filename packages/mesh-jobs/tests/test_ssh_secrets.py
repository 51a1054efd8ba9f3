"""The use of ssh by a job: secrets only on standard input, and no weaker host checks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mesh_jobs import JobError, SSHJob

#: Records its arguments, environment and standard input, and fails like ssh for an unreachable
#: host.
_SSH = """#!/bin/sh
printf '%s\\n' "$@" >> "$SSH_NOTES/arguments"
env >> "$SSH_NOTES/environment"
cat > "$SSH_NOTES/input-$$"
exit 255
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files in which the fake `ssh` records its inputs."""
    programs, notes = tmp_path / "bin", tmp_path / "notes"
    for folder in (programs, notes):
        folder.mkdir()
    (programs / "ssh").write_text(_SSH)
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SSH_NOTES", str(notes))
    with pytest.raises(JobError, match="could not start workers"):
        SSHJob({"ones": ["node7"]}, folder=tmp_path).apply()
    return notes


def worker_told(notes: Path) -> dict[str, Any]:
    """Return the request that starts the worker on the host."""
    # ssh is also called for its configuration, which needs no input.
    inputs = filter(None, (path.read_text() for path in notes.glob("input-*")))
    requests = [json.loads(one) for one in inputs]
    (start,) = [request for request in requests if request["verb"] == "start"]
    (worker,) = start["workers"]
    return dict(worker)


def test_ssh_gets_the_secret_of_a_worker_only_on_standard_input(notes: Path) -> None:
    worker = worker_told(notes)
    secret = json.loads(worker["secret"])
    assert any("PRIVATE KEY" in text for text in secret.values())
    for name in ("arguments", "environment"):
        assert "PRIVATE" not in (notes / name).read_text()


def test_the_worker_reads_its_secret_from_its_standard_input(notes: Path) -> None:
    worker = worker_told(notes)
    argv = worker["argv"]
    assert argv[argv.index("--secret") + 1] == "-"
    assert "PRIVATE" not in " ".join(argv) + json.dumps(worker["env"])


def test_ssh_uses_the_host_key_checks_that_the_user_configured(notes: Path) -> None:
    told = (notes / "arguments").read_text()
    assert "BatchMode=yes" in told, "a question for an unknown host would wait for ever"
    for weaker in ("StrictHostKeyChecking", "UserKnownHostsFile", "ForwardAgent"):
        assert weaker not in told
