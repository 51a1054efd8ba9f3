"""A job continues where it can if nodes are lost or revoked or the scheduler is unavailable."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from mesh_core import HostDied, add_standby_workers
from mesh_jobs import (
    HostDraining,
    JobStatus,
    Phase,
    SchedulerUnreachable,
    SlurmOptions,
    SlurmWorkerOptions,
)
from tests.jobs.slurm.jobs import (
    LIMIT_S,
    Counter,
    Jobs,
    drained,
    eventually,
    ids,
    members,
    names,
    said,
    status_when,
)
from tests.jobs.slurm.remote import RemoteCluster

#: Duration of the controller outage; longer than any timeout of SLURM or Mesh.
OUTAGE_S = 30.0


def has_lost(mesh: str, rank: int, status: JobStatus) -> bool:
    return status.of(mesh)[rank].state is Phase.ENDED


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_a_job_continues_when_a_node_is_lost(jobs: Jobs, cluster: RemoteCluster, rank: int) -> None:
    """This includes the first node, on which the script of the job runs."""
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


def test_a_node_that_reboots_immediately_loses_only_its_own_worker(
    jobs: Jobs, cluster: RemoteCluster
) -> None:
    """The scheduler learns of the loss when the node registers, and ends the steps of the node."""
    job = jobs({"a": 3})
    found = members(job.state(timeout=30).a)
    node = found.host.call().get(timeout=30).values()[2]
    cluster.power_cut(node)
    cluster.power_on(node)
    with pytest.raises(HostDied):
        found.slice(hosts=2).host.call_one().get(timeout=LIMIT_S)
    status = status_when(job, lambda status: has_lost("a", 2, status))
    assert status.up == 2
    assert len(found.slice(hosts=slice(2)).host.call().get(timeout=30).values()) == 2


@pytest.mark.slow
def test_a_lost_node_is_replaced_on_request(jobs: Jobs, cluster: RemoteCluster) -> None:
    job = jobs({"a": 2, "b": 1}, workers=SlurmWorkerOptions(replace_lost=True))
    state = job.state(timeout=30)
    found = members(state.a)
    before = found.host.call().get(timeout=30).values()
    cluster.power_cut(before[1])
    with pytest.raises(HostDied):
        found.slice(hosts=1).host.call_one().get(timeout=LIMIT_S)
    status_when(job, lambda status: has_lost("a", 1, status))
    assert job.state(timeout=LIMIT_S).a == state.a
    after = found.host.call().get(timeout=30).values()
    assert after[0] == before[0]
    assert after[1] not in before
    lost = [(event.mesh, event.rank) for event in job.events() if event.kind == "host-lost"]
    assert lost == [("a", 1)]
    assert len(ids()) == 2


def test_drained_nodes_are_reported(jobs: Jobs) -> None:
    job = jobs({"a": 2})
    _, second = names(job.state(timeout=30).a)
    assert job.leaving() == []
    with drained(second):
        (told,) = job.leaving()
    assert (told.mesh, told.rank, told.reason, told.seconds) == ("a", 1, "drain", None)
    assert job.leaving() == []


def test_actors_move_from_a_node_that_is_drained(jobs: Jobs) -> None:
    job = jobs({"a": 1, "spare": 1})
    state = job.state(timeout=LIMIT_S)
    (spare,) = names(state.spare)
    counter = state.a.spawn_procs().spawn("counter", Counter)
    count, node = counter.add.call_one().get(timeout=LIMIT_S)
    assert count == 1
    add_standby_workers(state.a, state.spare)

    def move(host: HostDraining) -> None:
        if host.mesh == "a":
            state.a.drain(host.rank)

    with job.on_leaving(move, poll_s=1.0), drained(node):
        eventually(lambda: counter.add.call_one().get(timeout=LIMIT_S)[1] == spare)
    assert counter.add.call_one().get(timeout=LIMIT_S)[0] > 2
    assert job.state(timeout=LIMIT_S).a == state.a


@pytest.mark.slow
def test_programs_are_notified_before_the_time_limit_ends_the_job(jobs: Jobs) -> None:
    """One limit is set by the job, the other by an administrator; SLURM counts in minutes."""
    short = jobs({"a": 1}, time_limit=1, options=SlurmOptions(warning_s=30))
    changed = jobs({"a": 1}, "changed")
    heard: dict[str, list[HostDraining]] = {"short": [], "changed": []}
    with ExitStack() as watches:
        for name, job in (("short", short), ("changed", changed)):
            job.state(timeout=30)
            watches.enter_context(job.on_leaving(heard[name].append, poll_s=1.0))
        left = changed.remaining()
        assert left is not None
        assert 500 < left <= 600
        said("scontrol", "update", f"JobId={ids()[-1]}", "TimeLimit=1")
        left = changed.remaining()
        assert left is not None
        assert left <= 60
        for job in (short, changed):
            assert "TIMEOUT" in job.wait(timeout=2 * LIMIT_S).reason
    for told in heard.values():
        assert [(host.mesh, host.rank, host.reason) for host in told] == [("a", 0, "timeout")]
        assert told[0].seconds is not None
        assert 0 <= told[0].seconds <= 60
    assert " s left" in "".join(event.text for event in short.events())


@pytest.mark.slow
def test_nodes_are_released_although_the_batch_script_is_lost(
    jobs: Jobs, cluster: RemoteCluster
) -> None:
    """No script waits for the workers any more: the last worker releases the allocation."""
    job = jobs({"a": 3}, ttl_s=3.0).apply()
    status_when(job, lambda status: status.is_up)
    # The first node writes the files of the script.
    cluster.power_cut("n1")
    status_when(job, lambda status: status.state is Phase.ENDED)
    assert ids() == []


@pytest.mark.slow
def test_a_requeued_job_restarts_on_other_nodes(jobs: Jobs) -> None:
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
def test_a_preempted_job_is_restarted(jobs: Jobs) -> None:
    job = jobs({"a": 4})
    job.state(timeout=30)
    urgent = said("sbatch", "--parsable", "--partition=urgent", "--wrap=sleep 600").strip()
    status_when(job, lambda status: status.state is Phase.PENDING)
    told = "the nodes are preempted for another job"
    eventually(lambda: told in [event.text for event in job.events()])
    said("scancel", urgent)
    assert len(names(job.state(timeout=60).a)) == 4


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_controller_outage_neither_ends_nor_duplicates_jobs(
    jobs: Jobs, cluster: RemoteCluster
) -> None:
    """During the outage one program runs, one waits for hosts, one applies and one kills."""
    same = SlurmOptions(slurm_args=["--constraint=only-n1"])
    job, other = jobs({"a": 1}, options=same), jobs({"a": 1}, "other")
    found = members(job.state(timeout=30).a)
    waiting, unwanted = jobs({"a": 1}, "waiting", options=same), jobs({"a": 1}, "unwanted").apply()
    with ThreadPoolExecutor(1) as threads:
        # Longer than the outage, and short enough that a failing test ends.
        waits = threads.submit(waiting.state, timeout=3 * OUTAGE_S)
        eventually(lambda: len(ids()) == 3)
        status_when(unwanted, lambda status: status.is_up)
        before = everything()
        cluster.stop_controller()
        until = time.monotonic() + OUTAGE_S
        while time.monotonic() < until:
            # Each call takes as long as the commands of SLURM retry.
            for ask in (job.status, job.apply, other.apply, unwanted.kill):
                with pytest.raises(SchedulerUnreachable):
                    ask()
            assert found.host.call().get(timeout=30).values() == ["n1"]
            assert not waits.done()
        cluster.start_controller()
        assert everything() == before
        assert other.apply().state(timeout=30)
        assert len(ids()) == 4, "what is to be given back is so when somebody asks again"
        unwanted.kill()
        assert found.host.call().get(timeout=30).values() == ["n1"]
        job.kill()
        assert names(waits.result(timeout=60).a) == ["n1"]
    assert len(ids()) == 2


def everything() -> list[str]:
    """Return each job with its state and its nodes."""
    return sorted(said("squeue", "--noheader", "--format=%i %j %T %N").splitlines())


def test_a_job_is_unchanged_after_a_restart_of_the_controller(
    jobs: Jobs, cluster: RemoteCluster
) -> None:
    job = jobs({"a": 1}).apply()
    status_when(job, lambda status: status.is_up)
    cluster.stop_controller()
    cluster.start_controller()
    assert status_when(job, lambda status: status.is_up)
    assert len(ids()) == 1


@pytest.mark.slow
def test_a_job_lost_by_the_controller_is_up_while_its_workers_run(
    jobs: Jobs, cluster: RemoteCluster
) -> None:
    """A controller that is killed may not have saved the jobs that it has just accepted."""
    # It may also not have saved the end of earlier tests' jobs, and would start them again.
    cluster.stop_controller()
    cluster.start_controller()
    job = jobs({"a": 1}, ttl_s=5.0).apply()
    status_when(job, lambda status: status.is_up)
    cluster.kill_controller()
    cluster.start_controller()
    status = status_when(job, lambda status: status.is_up or "held" in status.reason)
    if status.is_up:
        status_when(job, lambda status: status.state is Phase.ENDED)
    else:
        # It has restarted the job on a node that already runs it, and reports the conflict.
        assert status.state is Phase.PENDING
