"""The state of a job on disk, and its protection against other users and programs."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import mesh_jobs._state.folder
from mesh_core import this_host
from mesh_jobs import Job, JobBusy, JobError, JobMismatch, LocalJob, job_list, job_load
from mesh_jobs._atomic_files import private_folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder and a working folder for each test."""
    monkeypatch.setenv("MESH_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


def test_the_job_record_is_json_with_a_schema_version_and_the_owner() -> None:
    job = LocalJob().apply()
    stored = json.loads(Path(job.folder, "job.json").read_text())
    assert stored["schema"] == 2
    assert stored["spec"]["meshes"][0]["name"] == "hosts"
    assert stored["owner"]["pid"] == os.getpid()
    assert job.status().owner["pid"] == os.getpid()
    job.kill()


def test_kill_removes_only_the_folder_of_its_job() -> None:
    one, other = LocalJob(context="one").apply(), LocalJob(context="other").apply()
    one.kill()
    assert not Path(one.folder).exists()
    assert Path(other.folder, "job.json").exists()
    other.kill()
    assert not Path(".mesh").exists()


def test_a_named_context_is_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    job = LocalJob(context="training").apply()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert job_load("training").folder == job.folder
    assert [one.folder for one in job_list()] == [job.folder]
    job_load("training").kill()
    assert job_list() == []
    assert list((home / "contexts").glob("[!.]*")) == []
    with pytest.raises(JobError, match="no job is applied"):
        job_load("training")


def test_an_ambiguous_context_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [LocalJob(context="training", folder=tmp_path / name).apply() for name in ("one", "two")]
    with pytest.raises(JobError, match=r"several folders .*one.*two"):
        job_load("training")
    assert job_load("training", folder=tmp_path / "two").folder == jobs[1].folder
    for job in jobs:
        job.kill()


def test_the_default_context_belongs_to_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = LocalJob().apply()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobError, match="no job is applied"):
        job_load()
    job.kill()


def test_a_record_of_another_version_is_not_changed() -> None:
    job = LocalJob().apply()
    path = Path(job.folder, "job.json")
    whole = path.read_text()
    path.write_text(whole.replace('"schema": 2', '"schema": 3'))
    for change in (job.apply, job.kill, job.status):
        with pytest.raises(JobError, match="schema 3"):
            change()
    path.write_text(whole)
    job.kill()


def test_a_corrupt_record_is_reported() -> None:
    job = LocalJob().apply()
    path = Path(job.folder, "job.json")
    whole = path.read_text()
    path.write_text(whole[:-20])
    with pytest.raises(JobError, match=r"job\.json cannot be read"):
        job.status()
    path.write_text(whole)
    job.kill()


def test_the_error_for_a_busy_job_names_the_process_that_changes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mesh_jobs._state.folder, "_LOCK_S", 0.1)
    job = LocalJob().apply()
    path = Path(job.folder, "lock")
    with path.open("w") as lock:
        lock.write(json.dumps({"user": "ada", "host": "node7", "pid": 41}))
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(JobBusy, match="process 41 of ada on node7"):
            job.kill()
    job.kill()


def test_a_context_that_is_a_path_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a valid name of a context"):
        LocalJob(context="../other")


def test_a_mismatch_error_lists_each_field_and_can_be_pickled() -> None:
    LocalJob(["ones"]).apply()
    with pytest.raises(JobMismatch) as raised:
        LocalJob(["ones", "others"], name="second").apply()
    error: JobMismatch = pickle.loads(pickle.dumps(raised.value))
    assert [path for path, _, _ in error.differences] == ["name", "meshes.others"]
    assert "name: 'mesh' is applied, 'second' requested" in str(error)
    assert "apply(replace=True)" in str(error)
    job_load().kill()


def test_an_unknown_backend_error_lists_the_installed_backends() -> None:
    job = Job({"ones": 1}, backend="moon")
    with pytest.raises(JobError, match=r"no backend is named 'moon'; installed are .*process"):
        job.apply()


def test_the_machine_of_the_program_is_a_host() -> None:
    job = LocalJob(["ones", "others"])
    state = job.state(timeout=1)
    assert sorted(state) == ["ones", "others"]
    assert state.ones == state["others"] == this_host()
    job.kill()


def test_a_folder_that_another_program_removes_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".mesh" / "default"
    removed: list[Path] = []
    create = Path.mkdir

    def mkdir(path: Path, *args: Any, **kwargs: Any) -> None:
        if path == folder and not removed:
            folder.parent.rmdir()
            removed.append(path)
        create(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert private_folder(folder).is_dir()
    assert removed
