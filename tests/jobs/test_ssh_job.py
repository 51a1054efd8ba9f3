"""Machines reached over ssh: a real sshd under several names, each the same machine."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mesh_core import ConfigError
from mesh_jobs import (
    Job,
    JobEnded,
    JobError,
    NotSupported,
    SSHJob,
    SSHOptions,
    SSHWorkerOptions,
)
from mesh_jobs.testing import JobConformance, JobFactory, worker_pids
from tests.jobs.slow_variant import OF_ANY_BACKEND, with_slow
from tests.jobs.ssh_server import SSHServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SSHServer]:
    if missing := SSHServer.missing():
        pytest.skip(missing)
    server = SSHServer(tmp_path_factory.mktemp("sshd"))
    server.start()
    yield server
    server.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The home folder of the machines, in which no files may be left."""
    path = tmp_path / "machine"
    path.mkdir()
    yield path
    left = [one for one in path.rglob("*") if one.is_file()]
    assert left == []


def job_on(
    server: SSHServer,
    home: Path,
    meshes: dict[str, list[str]],
    name: str,
    *,
    python: str = sys.executable,
    port: int = 0,
    advertise: str = "ssh",
    ttl_s: float = 3600.0,
) -> SSHJob:
    env = {"MESH_HOME": str(home), "TMPDIR": tempfile.gettempdir()}
    return SSHJob(
        meshes,
        name=name,
        options=SSHOptions(ssh_args=server.arguments),
        workers=SSHWorkerOptions(python=python, env=env, port=port, advertise=advertise),
        ttl_s=ttl_s,
        folder=home.parent / name,
    )


@pytest.mark.timeout(240)
@with_slow(
    *OF_ANY_BACKEND,
    "test_what_nobody_uses_ends_by_itself",
    "test_a_client_script_ends_with_its_job",
    "test_a_client_script_runs_inside_and_its_end_is_that_of_the_job",
    "test_a_program_killed_while_it_applied_is_carried_on",
    "test_a_second_program_finds_the_hosts_of_the_first",
    "test_applying_twice_asks_once",
    "test_hosts_of_a_killed_program_serve_the_next",
)
class TestSSHJob(JobConformance):
    server: SSHServer

    @pytest.fixture
    def factory(self, server: SSHServer, home: Path) -> JobFactory:
        # Each test has a separate object.
        self.server = server

        def make(meshes: dict[str, int], name: str, *, ttl_s: float = 600.0) -> Job:
            # One machine more than the number of hosts, so that a mesh can grow.
            named = {mesh: [f"node{n}" for n in range(hosts + 1)] for mesh, hosts in meshes.items()}
            spec = job_on(server, home, named, name, ttl_s=ttl_s).spec
            for mesh, hosts in meshes.items():
                spec = spec.resized(mesh, hosts)
            return Job.of(spec, folder=home.parent / name)

        return make

    def workers(self, allocation_id: str) -> int:
        return len(worker_pids(allocation_id))

    def lose_host(self, job: Job, mesh: str, rank: int) -> None:
        os.kill(worker_pids(job.status().allocation_id)[mesh, rank], signal.SIGKILL)

    def block_scheduler(self) -> AbstractContextManager[None]:
        return self.server.silent()


def test_a_machine_that_cannot_be_logged_in_to_is_named_and_nothing_is_left(
    server: SSHServer, home: Path
) -> None:
    job = job_on(server, home, {"ones": ["node1", "elsewhere.invalid"]}, "typo")
    with pytest.raises(JobError, match=r"1 of 2 machines .*ssh elsewhere\.invalid: .*resolve"):
        job.apply()
    assert not Path(job.folder).exists()


def test_a_python_that_is_not_there_is_named(server: SSHServer, home: Path) -> None:
    job = job_on(server, home, {"ones": ["node1"]}, "snake", python="/nowhere/python")
    with pytest.raises(JobError, match="/nowhere/python"):
        job.apply()


def test_a_worker_that_dies_says_why(server: SSHServer, home: Path) -> None:
    taken = job_on(server, home, {"ones": ["node1"]}, "taken", advertise="worker")
    taken.state(timeout=60)
    port = int(str(taken.status().hosts[0].address).rpartition(":")[2])
    job = job_on(server, home, {"ones": ["node1"]}, "crash", port=port)
    with pytest.raises(JobEnded, match=f"{port} is in use") as raised:
        job.state(timeout=60)
    assert "is in use" in raised.value.logs["ones", 0]
    job.kill()
    taken.kill()


def test_a_mesh_is_resized_within_its_machines(server: SSHServer, home: Path) -> None:
    job = job_on(server, home, {"ones": ["node1", "node2"]}, "room")
    job.state(timeout=60)
    job.resize(mesh="ones", hosts=1)
    allocation_id = job.status().allocation_id
    assert set(worker_pids(allocation_id)) == {("ones", 0)}
    job.resize(mesh="ones", hosts=2)
    assert set(worker_pids(allocation_id)) == {("ones", 0), ("ones", 1)}
    with pytest.raises(NotSupported, match="names 2 machines"):
        job.resize(mesh="ones", hosts=3)
    assert len(job.status().hosts) == 2
    job.kill()


def test_machines_have_to_be_named() -> None:
    with pytest.raises(ConfigError, match="give a list of machines"):
        SSHJob().add_mesh("ones", 2)
