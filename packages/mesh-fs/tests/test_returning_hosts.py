"""Hosts that are lost and return, and hosts that are added later."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mesh_core import HostMesh, MeshError
from mesh_core.testing import wait_until
from mesh_fs import (
    CacheOptions,
    HostStatus,
    HostSync,
    MountError,
    MountHandler,
    remotemount,
    sync_workspace,
)

jobs = pytest.importorskip("mesh_jobs")
jobs_testing = pytest.importorskip("mesh_jobs.testing")

LIMIT_S = 60.0
LARGE = "package/inner/large.bin"


class Workers:
    """Worker processes of this machine as hosts, with a separate chunk store."""

    def __init__(self, folder: Path, **meshes: int) -> None:
        env = {"MESH_FS_CACHE": str(folder / "chunks")}
        self._job = jobs.ProcessJob(meshes, folder=folder, env=env, ttl_s=120)
        self.state = self._job.state(timeout=LIMIT_S)

    def mesh(self, name: str) -> HostMesh:
        """Return the hosts with this name."""
        found: HostMesh = self.state[name]
        found.initialized.get(timeout=LIMIT_S)
        return found

    def kill(self, mesh: str, rank: int) -> None:
        """Kill a worker with all its processes."""
        pids = jobs_testing.worker_pids(self._job.status().allocation_id)
        os.kill(pids[mesh, rank], signal.SIGKILL)

    def bring_back(self, mesh: str) -> None:
        """Replace the workers that were killed."""
        wait_until(lambda: not self._job.status().is_up, LIMIT_S)
        self._job.resize(mesh=mesh, hosts=self._job.spec.mesh(mesh).hosts)
        self._job.state(timeout=LIMIT_S)

    def end(self) -> None:
        """Stop the workers."""
        self._job.detach()
        self._job.kill()


@contextmanager
def workers(folder: Path, **meshes: int) -> Iterator[Workers]:
    """Run this number of workers for each name."""
    made = Workers(folder, **meshes)
    try:
        yield made
    finally:
        made.end()


def places(mountpoint: Path, count: int) -> list[Path]:
    """Return the paths of the mount on the hosts of a mesh."""
    return [mountpoint / f"hosts_{rank}" / "files" for rank in range(count)]


def answer_at(place: Path) -> str:
    """Return the content of a module in the mount, or an empty string if it does not exist."""
    try:
        return (place / "package/module.py").read_text()
    except OSError:
        return ""


def statuses(handler: MountHandler) -> list[HostStatus | MeshError]:
    """Return the status of all hosts."""
    return handler.status().values()


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Path]:
    """A parent for the mount points of several hosts of one machine."""
    place = tmp_path / "mnt"
    yield place
    table = Path("/proc/self/mountinfo").read_text()
    assert f" {place}/" not in table
    assert [one for one in place.rglob("*") if not one.is_dir()] == []


@pytest.mark.usefixtures("needs_mounts")
def test_a_lost_host_that_returns_mounts_the_files_automatically(
    source: Path, several: Path, cache: CacheOptions, tmp_path: Path
) -> None:
    first, second = places(several, 2)
    with workers(tmp_path, ones=2) as hosts:
        there = several / "$SUBDIR" / "files"
        with remotemount(hosts.mesh("ones"), source, there, cache=cache) as handler:
            handler.wait(LIMIT_S)
            sent = handler.sent_bytes()
            hosts.kill("ones", 1)
            wait_until(lambda: not os.path.ismount(second), LIMIT_S)
            wait_until(lambda: isinstance(statuses(handler)[1], MeshError), LIMIT_S)
            assert answer_at(first) == "ANSWER = 42\n"
            (source / "package/module.py").write_text("ANSWER = 43\n")
            assert handler.refresh() is True
            hosts.bring_back("ones")
            wait_until(lambda: answer_at(second) == "ANSWER = 43\n", LIMIT_S)
            assert (second / LARGE).read_bytes() == (source / LARGE).read_bytes()
            assert handler.sent_bytes() - sent < 100_000
            (source / "package/module.py").write_text("ANSWER = 44\n")
            assert handler.refresh() is True
            assert [answer_at(place) for place in (first, second)] == ["ANSWER = 44\n"] * 2


@pytest.mark.usefixtures("needs_mounts")
def test_added_hosts_fetch_from_hosts_that_have_the_files(
    source: Path, several: Path, tmp_path: Path
) -> None:
    (tmp_path / "later").mkdir()
    with workers(tmp_path, ones=3) as hosts, workers(tmp_path / "later", twos=2) as later:
        ones, twos = hosts.mesh("ones"), later.mesh("twos")
        there = several / "$SUBDIR" / "files"
        with remotemount(ones.slice(hosts=slice(0, 2)), source, there) as handler:
            handler.wait(LIMIT_S)
            sent = handler.sent_bytes()
            assert handler.add_hosts(ones) == 1
            assert handler.add_hosts(ones) == 0
            with pytest.raises(MountError, match="relative"):
                handler.add_hosts(twos, "there")
            with pytest.raises(MountError):
                # The mounts of other hosts on this machine use these paths.
                handler.add_hosts(twos)
            elsewhere = several / "twos" / "$SUBDIR" / "files"
            assert handler.add_hosts(twos, elsewhere) == 2
            everywhere = [*places(several, 3), *places(several / "twos", 2)]
            assert [answer_at(place) for place in everywhere] == ["ANSWER = 42\n"] * 5
            completed = handler.wait(LIMIT_S)
            assert dict(completed.extent) == {"hosts": 5}
            assert handler.sent_bytes() == sent
            assert max(one.fetched_bytes for one in completed.values()[3:]) > 3_000_000
            (source / "package/module.py").write_text("ANSWER = 43\n")
            assert handler.refresh() is True
            assert [answer_at(place) for place in everywhere] == ["ANSWER = 43\n"] * 5
            later.kill("twos", 0)
            # The process that showed the files ends a moment after its worker.
            wait_until(lambda: not os.path.ismount(everywhere[3]), LIMIT_S)
            wait_until(lambda: isinstance(statuses(handler)[3], MeshError), LIMIT_S)
            later.bring_back("twos")
            wait_until(lambda: answer_at(everywhere[3]) == "ANSWER = 43\n", LIMIT_S)


def test_a_workspace_is_written_on_a_host_that_returns(
    source: Path, cache: CacheOptions, tmp_path: Path
) -> None:
    copies = tmp_path / "copies"
    second = copies / "hosts_1"
    with (
        workers(tmp_path, ones=2) as hosts,
        sync_workspace(hosts.mesh("ones"), source, copies / "$SUBDIR", cache=cache) as workspace,
    ):
        hosts.kill("ones", 1)
        wait_until(lambda: isinstance(workspace.sync().hosts.values()[1], MeshError), LIMIT_S)
        (source / "package/module.py").write_text("ANSWER = 43\n")
        assert isinstance(workspace.sync().hosts.values()[1], MeshError)
        assert (second / "package/module.py").read_text() == "ANSWER = 42\n"
        hosts.bring_back("ones")
        answers = workspace.sync().hosts.values()
        assert [type(answer) for answer in answers] == [HostSync, HostSync]
        assert (second / "package/module.py").read_text() == "ANSWER = 43\n"
