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
    "test_an_unused_job_ends",
    "test_killing_a_job_terminates_its_client_script",
    "test_a_job_ends_with_the_exit_status_of_its_client_script",
    "test_the_next_program_completes_an_interrupted_apply",
    "test_a_second_program_finds_the_hosts_of_the_first",
    "test_applying_a_job_twice_submits_one_request",
    "test_the_next_program_uses_the_hosts_of_a_killed_program",
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


def test_a_machine_that_refuses_the_login_is_named_and_nothing_is_left_behind(
    server: SSHServer, home: Path
) -> None:
    job = job_on(server, home, {"ones": ["node1", "elsewhere.invalid"]}, "typo")
    with pytest.raises(JobError, match=r"1 of 2 machines .*ssh elsewhere\.invalid: .*resolve"):
        job.apply()
    assert not Path(job.folder).exists()


def test_a_missing_python_is_named(server: SSHServer, home: Path) -> None:
    job = job_on(server, home, {"ones": ["node1"]}, "snake", python="/nowhere/python")
    with pytest.raises(JobError, match="/nowhere/python"):
        job.apply()


def test_the_error_for_a_dead_worker_contains_its_output(server: SSHServer, home: Path) -> None:
    taken = job_on(server, home, {"ones": ["node1"]}, "taken", advertise="worker")
    taken.state(timeout=60)
    port = int(str(taken.status().hosts[0].address).rpartition(":")[2])
    job = job_on(server, home, {"ones": ["node1"]}, "crash", port=port)
    with pytest.raises(JobEnded, match=f"{port} is in use") as raised:
        job.state(timeout=60)
    assert "is in use" in raised.value.logs["ones", 0]
    job.kill()
    taken.kill()


def test_a_mesh_can_be_resized_up_to_its_number_of_machines(server: SSHServer, home: Path) -> None:
    job = job_on(server, home, {"ones": ["node1", "node2"]}, "resize")
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


def test_a_mesh_needs_a_list_of_machines() -> None:
    with pytest.raises(ConfigError, match="give a list of machines"):
        SSHJob().add_mesh("ones", 2)
