"""`mesh mount`, `umount`, `mounts`, `sync` and `doctor fs`, as a user runs them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import mount_table
from job_folder import LIMIT_S, JobFolder, applied_job

from mesh_core.testing import wait_until

pytest.importorskip("mesh_jobs")
pytest.importorskip("typer")

pytestmark = pytest.mark.usefixtures("needs_mounts")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobFolder]:
    """A job that all tests here use."""
    path = tmp_path_factory.mktemp("job")
    with applied_job(path) as folder:
        yield folder
    assert mount_table(path) == []


@pytest.fixture
def there(job: JobFolder) -> Iterator[Path]:
    """The parent of mount points, with a folder for each host; nothing may be left there."""
    place = job.path / "there"
    yield place
    job.output("umount", "--all")
    assert mount_table(job.path) == []
    shutil.rmtree(place, ignore_errors=True)


def test_a_mount_outlives_its_command_until_it_is_unmounted(
    job: JobFolder, source: Path, there: Path
) -> None:
    point = f"{there}/$SUBDIR/files"
    mounted = job.json("mount", str(source), point, "-m", "trainers", "--wait")
    assert [host["is_complete"] for host in mounted["hosts"]] == [True, True]
    assert (mounted["source"], mounted["name"]) == (str(source), point)
    modules = [there / f"hosts_{rank}/files/package/module.py" for rank in range(2)]
    assert [module.read_text() for module in modules] == ["ANSWER = 42\n"] * 2
    # The same command again shows the changes.
    (source / "package/module.py").write_text("ANSWER = 43\n")
    (_, row) = job.output("mount", str(source), point, "-m", "trainers").splitlines()
    assert row.split()[:6] == [str(source), point, "fuse", "2", "of", "2"]
    assert [module.read_text() for module in modules] == ["ANSWER = 43\n"] * 2
    assert job.output("exec", "-m", "trainers", "--host", "0", f"cat {modules[0]}") == (
        "[trainers] ANSWER = 43\n"
    )
    assert job.json("umount", point) == {"unmounted": [point]}
    assert job.output("mounts") == "nothing is mounted by mesh mount\n"
    assert not any(module.exists() for module in modules)


def test_a_mount_covers_all_meshes_by_default_and_tracks_its_directory(
    job: JobFolder, source: Path, there: Path
) -> None:
    options = ("--backend", "unpack", "--ignore", "*.bin", "--watch")
    # All hosts share this path because they run on this machine.
    run = job.run("mount", str(source), f"{there}/one", *options)
    assert run.returncode == 1
    assert run.stderr.startswith("mesh: ")
    assert "not empty" in run.stderr
    point = f"{there}/$SUBDIR"
    mounted = job.json("mount", str(source), point, "-m", "readers", *options)
    assert [host["backend"] for host in mounted["hosts"]] == ["unpack"]
    assert not (there / "hosts_0/package/inner/large.bin").exists()
    (source / "added").write_text("later")
    wait_until(lambda: (there / "hosts_0/added").exists(), LIMIT_S)
    (listed,) = job.json("mounts")
    assert (listed["source"], listed["name"]) == (str(source), point)
    run = job.run("mount", str(source), point)
    assert run.returncode == 1
    assert "with a different meshes, backend, watch, ignore: close it first" in run.stderr


def test_an_invalid_mount_prints_an_error_without_a_traceback(
    job: JobFolder, source: Path, there: Path
) -> None:
    for arguments, words in (
        (["mount", str(source), "there"], "is a relative path"),
        (["mount", str(source), str(there), "-m", "none"], "the job has no mesh 'none'"),
        (["umount", str(there)], "the job has no mount"),
        (["umount"], "give either a mountpoint or --all"),
    ):
        run = job.run(*arguments)
        assert run.returncode == 1, arguments
        assert words in run.stderr
        assert "Traceback" not in run.stderr


def test_sync_writes_a_directory_to_all_hosts(job: JobFolder, source: Path, there: Path) -> None:
    point = f"{there}/$SUBDIR"
    rows = job.json("sync", str(source), point, "-m", "trainers")
    assert [(row["mesh"], row["rank"]) for row in rows] == [("trainers", 0), ("trainers", 1)]
    assert all(row["written"] for row in rows)
    (source / "script.sh").write_text("other\n")
    rows = job.json("sync", str(source), point, "-m", "trainers")
    # Both names of the file count.
    assert [row["written"] for row in rows] == [2, 2]
    assert (there / "hosts_1/script.sh").read_text() == "other\n"


def test_the_doctor_reports_the_backend_of_each_host(job: JobFolder) -> None:
    found = job.json("doctor", "fs")
    assert {name: len(one["hosts"]) for name, one in found.items()} == {
        "trainers": 2,
        "readers": 1,
    }
    assert {host["backend"] for one in found.values() for host in one["hosts"]} == {"fuse"}


def test_mounts_are_removed_with_the_job(tmp_path: Path, source: Path) -> None:
    with applied_job(tmp_path) as folder:
        folder.output("mount", str(source), f"{tmp_path}/$SUBDIR", "-m", "trainers")
        assert os.path.ismount(tmp_path / "hosts_1")
    assert mount_table(tmp_path) == []
    assert not (tmp_path / ".mesh").exists()
