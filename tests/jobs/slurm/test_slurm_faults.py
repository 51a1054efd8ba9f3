"""Nodes are lost, the scheduler takes them away or is away itself: a job goes on where it can."""

from __future__ import annotations

import time

import pytest

from mesh_core import HostDied
from mesh_jobs import JobStatus, Phase, SchedulerUnreachable
from tests.jobs.slurm.jobs import LIMIT_S, Jobs, drained, ids, members, names, said, status_when
from tests.jobs.slurm.remote import RemoteCluster

#: How long the controller is away; longer than any limit of its own or of ours.
OUTAGE_S = 30.0


def has_lost(mesh: str, rank: int, status: JobStatus) -> bool:
    return status.of(mesh)[rank].state is Phase.ENDED


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_job_goes_on_when_a_node_is_lost(jobs: Jobs, cluster: RemoteCluster, rank: int) -> None:
    """Also when it is the first, where the job's script runs."""
    job = jobs({"a": 3})
    state = job.state(timeout=30)
    found = members(state.a)
    node = found.host.call().get(timeout=30).values()[rank]
    cluster.power_cut(node)
    with pytest.raises(HostDied):
        found.slice(hosts=rank).host.call_one().get(timeout=LIMIT_S)
    status = status_when(job, lambda status: has_lost("a", rank, status))
    assert status.state is Phase.RUNNING
    assert f"node {node} is DOWN" in status.of("a")[rank].reason
    assert "Not responding" in status.of("a")[rank].reason
    assert status.up == 2
    for other in {0, 1, 2} - {rank}:
        assert found.slice(hosts=other).host.call_one().get(timeout=30)


@pytest.mark.slow
def test_nodes_are_given_back_though_the_script_is_lost(jobs: Jobs, cluster: RemoteCluster) -> None:
    """Nobody waits for the workers any more: the last of them sees to it."""
    job = jobs({"a": 3}, ttl_s=3.0).apply()
    status_when(job, lambda status: status.is_up)
    # What the script writes, it writes on the first node.
    cluster.power_cut("n1")
    status_when(job, lambda status: status.state is Phase.ENDED)
    assert ids() == []


@pytest.mark.slow
def test_job_that_is_queued_again_comes_back_on_other_nodes(jobs: Jobs) -> None:
    job = jobs({"a": 2})
    before = names(job.state(timeout=30).a)
    assert before == ["n1", "n2"]
    with drained("n1"), drained("n2"):
        said("scontrol", "requeue", ids()[0])
        waiting = status_when(job, lambda status: status.state is Phase.PENDING)
        assert waiting.up == 0
        state = job.state(timeout=60)
        assert {host.epoch for host in job.status().hosts} == {1}
        assert names(state.a) == ["n3", "n4"]
    assert "restart 1" in "".join(event.text for event in job.events())


@pytest.mark.slow
def test_preempted_job_comes_back(jobs: Jobs) -> None:
    job = jobs({"a": 4})
    job.state(timeout=30)
    urgent = said("sbatch", "--parsable", "--partition=urgent", "--wrap=sleep 600").strip()
    status_when(job, lambda status: status.state is Phase.PENDING)
    assert "stopping" in [event.kind for event in job.events()]
    said("scancel", urgent)
    assert len(names(job.state(timeout=60).a)) == 4


@pytest.mark.slow
def test_nothing_ends_and_nothing_doubles_while_the_controller_is_away(
    jobs: Jobs, cluster: RemoteCluster
) -> None:
    job, other = jobs({"a": 1}), jobs({"a": 1}, "other")
    found = members(job.state(timeout=30).a)
    cluster.stop_controller()
    until = time.monotonic() + OUTAGE_S
    while time.monotonic() < until:
        # Each of them takes as long as the commands of SLURM try.
        for ask in (job.status, job.apply, other.apply):
            with pytest.raises(SchedulerUnreachable):
                ask()
        assert found.host.call().get(timeout=30).values() == ["n1"]
    with pytest.raises(SchedulerUnreachable):
        job.kill()
    cluster.start_controller()
    assert other.apply().state(timeout=30)
    assert len(ids()) == 2, "it is to be given back still"
    job.kill()
    assert len(ids()) == 1


def test_job_is_the_same_when_the_controller_comes_back(jobs: Jobs, cluster: RemoteCluster) -> None:
    job = jobs({"a": 1}).apply()
    status_when(job, lambda status: status.is_up)
    cluster.stop_controller()
    cluster.start_controller()
    assert status_when(job, lambda status: status.is_up)
    assert len(ids()) == 1


@pytest.mark.slow
def test_job_that_the_controller_has_forgotten_is_up_while_its_workers_are(
    jobs: Jobs, cluster: RemoteCluster
) -> None:
    """A controller that is killed may not have saved yet what it has just been given."""
    job = jobs({"a": 1}, ttl_s=5.0).apply()
    status_when(job, lambda status: status.is_up)
    cluster.kill_controller()
    cluster.start_controller()
    assert status_when(job, lambda status: status.state is not Phase.PENDING).is_up
    status_when(job, lambda status: status.state is Phase.ENDED)
