"""Extensions of other packages on the hosts of a job, in a program and after its exit."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from workers import END_LIMIT_S, is_alive

from mesh_core import Actor, HostMesh, MeshError, endpoint
from mesh_core.testing import wait_until
from mesh_jobs import Job, JobError, LocalJob, ProcessJob
from mesh_jobs._extensions.daemon_client import ExtensionDaemonClient
from mesh_jobs._extensions.extension import load_extension
from mesh_jobs._host.process_table import command_of, processes
from mesh_jobs._state.folder import StateFolder
from mesh_jobs.testing import worker_pids

UP_S = 60.0

#: JobExtension of another package, which creates a file for each host while it is open.
NOTES = """
import os
from pathlib import Path
from mesh_core import ActorError, Actor, endpoint, MeshError

class Noting(Actor):
    @endpoint
    def note(self, folder):
        Path(folder, str(os.getpid())).touch()

class Notes:
    def __init__(self, folder, text=""):
        if text == "refused":
            raise ValueError("notes are refused")
        self.folder = folder
    def open(self, meshes):
        self.procs = [hosts.spawn_procs(name="notes") for hosts in meshes.values()]
        self.refresh()
        return self
    def refresh(self):
        for procs in self.procs:
            procs.spawn("noting", Noting).note.call(self.folder).get()
    def used(self, name, hosts):
        return hosts
    def status(self):
        return {"count": len(os.listdir(self.folder))}
    def close(self):
        for path in Path(self.folder).iterdir():
            path.unlink()
        for procs in self.procs:
            procs.stop().get()
"""


class Lamp:
    """An extension that records its calls."""

    def __init__(self, course: list[str], name: str = "lamp", *, is_broken: bool = False) -> None:
        self.course = course
        self.name = name
        self.is_broken = is_broken

    def open(self, meshes: Mapping[str, HostMesh]) -> Lamp:
        if self.is_broken:
            raise MeshError("it does not shine")
        self.course.append(f"{self.name} opened on {', '.join(meshes)}")
        return self

    def refresh(self) -> None:
        self.course.append(f"{self.name} refreshed")

    def used(self, name: str, hosts: HostMesh) -> HostMesh:
        return hosts.with_python_executable(sys.executable) if name == "hosts" else hosts

    def status(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        self.course.append(f"{self.name} closed")


class Member(Actor):
    """Actor that returns the command line of its process."""

    @endpoint
    def command(self) -> list[str]:
        return Path("/proc/self/cmdline").read_text().split("\0")


def test_extensions_open_with_the_state_and_close_with_the_job(tmp_path: Path) -> None:
    course: list[str] = []
    job = LocalJob(["hosts"], folder=tmp_path)
    job.add_extensions(Lamp(course), Lamp(course, "fan")).apply()
    assert course == []
    state = job.state(timeout=UP_S)
    assert course == ["lamp opened on hosts", "fan opened on hosts"]
    job.add_extensions(Lamp(course, "desk"))
    job.state(timeout=UP_S)
    assert course[2:] == ["lamp refreshed", "fan refreshed", "desk opened on hosts"]
    command = state.hosts.spawn_procs().spawn("member", Member).command.call_one().get(UP_S)
    assert "mesh_core._program.launch" in command
    job.detach()
    assert course[5:] == ["desk closed", "fan closed", "lamp closed"]
    job.state(timeout=UP_S)
    assert course[8:] == ["lamp opened on hosts", "fan opened on hosts", "desk opened on hosts"]
    job.kill()
    assert course[11:] == ["desk closed", "fan closed", "lamp closed"]


def test_the_next_state_call_retries_an_extension_that_failed_to_open(tmp_path: Path) -> None:
    course: list[str] = []
    broken = Lamp(course, "broken", is_broken=True)
    job = LocalJob(["hosts"], folder=tmp_path).add_extensions(Lamp(course), broken)
    with pytest.raises(MeshError, match="does not shine"):
        job.state(timeout=UP_S)
    broken.is_broken = False
    job.state(timeout=UP_S)
    assert course == ["lamp opened on hosts", "lamp refreshed", "broken opened on hosts"]
    job.kill()


def test_an_extension_that_is_not_installed_is_named() -> None:
    with pytest.raises(JobError, match="no installed package provides the host extension 'sail'"):
        load_extension("sail", {})


def daemons(folder: Path) -> list[int]:
    """Return the extension daemons of the job in a folder."""
    return [
        one.pid
        for one in processes()
        if "mesh_jobs._job.extension_daemon" in command_of(one.pid)
        and str(folder / ".mesh/default") in command_of(one.pid)
        and is_alive(one.pid)
    ]


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the package `notes` for started programs; return the folder of its files."""
    package = tmp_path / "package"
    metadata = package / "notes-1.0.dist-info"
    metadata.mkdir(parents=True)
    (package / "notes.py").write_text(NOTES)
    (metadata / "METADATA").write_text("Name: notes\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[mesh_jobs.extensions]\nnotes = notes:Notes\n")
    paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    place = tmp_path / "noted"
    place.mkdir()
    return place


@pytest.fixture
def job(tmp_path: Path, noted: Path) -> Iterator[Job]:
    """A job of two hosts that other programs can use; checks that no daemon remains."""
    job = ProcessJob({"ones": 2}, folder=tmp_path, ttl_s=120).apply()
    job.wait_up(UP_S)
    yield job
    job.kill()
    wait_until(lambda: daemons(tmp_path) == [], END_LIMIT_S)


def test_an_extension_stays_open_until_it_is_closed(job: Job, noted: Path, tmp_path: Path) -> None:
    held = ExtensionDaemonClient(StateFolder(Path(job.folder)))
    assert held.statuses("notes") == []
    assert daemons(tmp_path) == []
    fields = {"folder": str(noted)}
    assert held.open("notes", "first", fields) == {"name": "first", "count": 2}
    (daemon,) = daemons(tmp_path)
    assert held.open("notes", "first", fields) == {"name": "first", "count": 2}
    assert held.statuses("notes") == [{"name": "first", "count": 2}]
    assert held.statuses("others") == []
    with pytest.raises(JobError, match="with a different folder: close it first"):
        held.open("notes", "first", {"folder": "elsewhere"})
    with pytest.raises(JobError, match="notes are refused"):
        held.open("notes", "second", {"folder": str(noted), "text": "refused"})
    with pytest.raises(JobError, match="the job has no notes 'third'"):
        held.close("notes", "third")
    # An open extension does not prevent programs from using the hosts.
    members = job.state(UP_S).ones.spawn_procs().spawn("members", Member)
    assert len(members.command.call().get(UP_S).values()) == 2
    job.detach()
    assert len(list(noted.iterdir())) == 2
    held.close("notes", "first")
    assert list(noted.iterdir()) == []
    wait_until(lambda: not is_alive(daemon), END_LIMIT_S)
    assert held.statuses("notes") == []


def test_an_extension_is_closed_when_the_job_is_killed(
    job: Job, noted: Path, tmp_path: Path
) -> None:
    held = ExtensionDaemonClient(StateFolder(Path(job.folder)))
    held.open("notes", "first", {"folder": str(noted)})
    job.kill()
    assert list(noted.iterdir()) == []
    wait_until(lambda: daemons(tmp_path) == [], END_LIMIT_S)
    assert not (tmp_path / ".mesh").exists()


def test_a_new_daemon_replaces_a_killed_one(job: Job, noted: Path, tmp_path: Path) -> None:
    held = ExtensionDaemonClient(StateFolder(Path(job.folder)))
    held.open("notes", "first", {"folder": str(noted)})
    (daemon,) = daemons(tmp_path)
    os.kill(daemon, signal.SIGKILL)
    wait_until(lambda: not is_alive(daemon), END_LIMIT_S)
    assert held.statuses("notes") == []
    held.open("notes", "second", {"folder": str(noted)})
    assert [one["name"] for one in held.statuses("notes")] == ["second"]


def test_a_daemon_exits_when_all_its_hosts_are_lost(job: Job, noted: Path, tmp_path: Path) -> None:
    held = ExtensionDaemonClient(StateFolder(Path(job.folder)))
    held.open("notes", "first", {"folder": str(noted)})
    for pid in worker_pids(job.status().allocation_id).values():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: daemons(tmp_path) == [], 2 * END_LIMIT_S)
