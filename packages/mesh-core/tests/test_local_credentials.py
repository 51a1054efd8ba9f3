"""Workers and programs without job credentials use the credentials of their user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from workers import END_LIMIT_S, WorkerProcess

from mesh_core import Credentials, CredentialsError, attach_to_workers, shutdown_context
from mesh_core.testing import wait_until


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without credentials."""
    monkeypatch.delenv("MESH_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path / "home"


@pytest.fixture
def fresh_job() -> Iterator[None]:
    """Give each test a separate job, because hosts belong to one job."""
    yield
    shutdown_context().get()


def test_all_programs_of_a_user_share_an_authority(home: Path) -> None:
    worker, controller = Credentials.local(role="worker"), Credentials.local()
    assert (worker.role, controller.role) == ("worker", "controller")
    assert worker.job == controller.job
    assert not worker.can_issue
    folder = home / ".mesh" / "local"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]


def keep_authority(home: Path, valid_for_s: float) -> Path:
    """Create an authority with a given lifetime in the home folder; return its folder.

    Authorities are valid from five minutes before their creation, and are due for rotation after
    two thirds of their lifetime.
    """
    folder = home / ".mesh" / "local"
    folder.mkdir(parents=True, mode=0o700)
    Credentials.create(valid_for=valid_for_s).save(home / "made")
    (home / "made" / "authority.pem").rename(folder / "authority-1.pem")
    return folder


def test_an_authority_due_for_rotation_is_renewed(home: Path) -> None:
    folder = keep_authority(home, 60)
    assert Credentials.local().generation == 2
    assert [path.name for path in folder.iterdir()] == ["authority-2.pem"]


def test_the_folder_is_below_mesh_home_if_that_is_set(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_HOME", str(home / "elsewhere"))
    Credentials.local()
    assert (home / "elsewhere" / "local").is_dir()
    assert not (home / ".mesh").exists()


def test_a_user_without_a_home_folder_uses_the_runtime_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home / "nowhere"))
    job = Credentials.local().job
    assert (home.parent / "run" / "mesh" / "local").is_dir()
    # Existing credentials take precedence, even if a home folder becomes available later.
    monkeypatch.setenv("HOME", str(home))
    assert Credentials.local().job == job


@pytest.fixture
def homeless(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of a user without a home and a runtime folder."""
    monkeypatch.setenv("HOME", str(home / "nowhere"))
    (home.parent / "run").chmod(0o755)
    monkeypatch.setattr("mesh_core._security.local_credentials._SHARED", str(home.parent / "tmp"))
    return home.parent / "tmp"


def test_a_user_without_a_home_or_runtime_folder_uses_a_temporary_folder(homeless: Path) -> None:
    homeless.mkdir()
    homeless.chmod(0o1777)
    Credentials.local()
    (folder,) = homeless.iterdir()
    assert folder.name == f"mesh-local-{os.geteuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_temporary_folder_created_by_another_user_is_refused(
    homeless: Path,
) -> None:
    taken = homeless / f"mesh-local-{os.geteuid()}"
    taken.mkdir(parents=True, mode=0o700)
    os.chown(taken, 54321, -1)
    with pytest.raises(CredentialsError, match="belongs to user 54321"):
        Credentials.local()


@pytest.mark.usefixtures("homeless")
def test_without_a_folder_the_error_says_what_to_do() -> None:
    with pytest.raises(CredentialsError, match="set MESH_HOME to a private folder of this user"):
        Credentials.local()


def test_a_folder_accessible_to_other_users_is_refused(home: Path) -> None:
    Credentials.local()
    (home / ".mesh" / "local").chmod(0o755)
    with pytest.raises(CredentialsError, match="chmod 700 it"):
        Credentials.local()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(home: Path) -> None:
    Credentials.local()
    os.chown(home / ".mesh" / "local", 54321, -1)
    with pytest.raises(CredentialsError, match="belongs to user 54321"):
        Credentials.local()


@pytest.mark.usefixtures("fresh_job")
def test_a_worker_without_credentials_serves_programs_of_its_user(home: Path) -> None:
    with WorkerProcess() as worker:
        hosts = attach_to_workers([worker.address])
        hosts.initialized.get()
        hosts.shutdown().get()
    assert (home / ".mesh" / "local").is_dir()


@pytest.mark.usefixtures("fresh_job")
def test_a_program_attaches_to_workers_with_local_and_with_job_credentials(home: Path) -> None:
    job = Credentials.create()
    job.issue(role="worker", name="one").save(home / "worker")
    with WorkerProcess(credentials=home / "worker") as one, WorkerProcess() as other:
        before = attach_to_workers([other.address])
        theirs = attach_to_workers([one.address], credentials=job)
        before.initialized.get()
        theirs.initialized.get()
        before.shutdown().get()
        # This works even if the program has used credentials of a job before.
        attach_to_workers([other.address]).initialized.get()


@pytest.mark.usefixtures("fresh_job")
def test_a_worker_that_waits_for_a_job_renews_its_credentials(home: Path) -> None:
    folder = keep_authority(home, valid_for_s=153)
    with WorkerProcess() as worker:
        # It is due after 2 s, and only the worker can rotate it here.
        assert wait_until(lambda: (folder / "authority-2.pem").exists(), END_LIMIT_S)
        attach_to_workers([worker.address]).initialized.get()
