"""Standby workers, which take over hosts that die."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_host_replace import LIMIT_S, Member, cut_power
from worker_fixtures import attached
from worker_fixtures import frequent_heartbeats as frequent_heartbeats
from worker_fixtures import fresh_job as fresh_job
from worker_fixtures import workers as workers
from workers import WorkerProcess

from mesh_core import (
    HostDied,
    HostMesh,
    SupervisionError,
    configured,
    endpoint,
    shutdown_context,
)
from mesh_core.testing import wait_until

pytestmark = pytest.mark.usefixtures("frequent_heartbeats")


def with_standby(workers: list[WorkerProcess]) -> HostMesh:
    """Attach one worker as a host and keep the others as standby workers."""
    return attached(workers, standby=len(workers) - 1)


def until_answered(mesh: Any) -> list[int]:
    """Call the mesh until it replies."""
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            values: list[int] = mesh.add.call().get(timeout=LIMIT_S).values()
        except SupervisionError:
            if time.monotonic() > until:
                raise
        else:
            return values


def test_a_standby_worker_replaces_a_dead_host(workers: list[WorkerProcess]) -> None:
    hosts = with_standby(workers)
    assert hosts.extent == {"hosts": 1}
    mesh = hosts.spawn_procs({"procs": 2}).spawn("member", Member)
    assert mesh.add.call().get(timeout=LIMIT_S).values() == [1, 1]
    cut_power(workers[0], mesh.slice(hosts=0, procs=0))
    hosts.replace(0)
    assert mesh.add.call().get(timeout=LIMIT_S).values() == [1, 1]


def test_replacing_a_rank_of_a_dead_host_uses_a_standby_worker(
    workers: list[WorkerProcess],
) -> None:
    procs = with_standby(workers).spawn_procs({"procs": 2})
    mesh = procs.spawn("member", Member)
    assert mesh.add.call().get(timeout=LIMIT_S).values() == [1, 1]
    cut_power(workers[0], mesh.slice(hosts=0, procs=0))
    procs.replace(0)
    mesh.replace(1)
    assert mesh.add.call().get(timeout=LIMIT_S).values() == [1, 1]
    assert mesh.host_epoch == 1


def test_a_restart_policy_uses_standby_workers_until_none_is_left(
    workers: list[WorkerProcess],
) -> None:
    procs = with_standby(workers).spawn_procs({"procs": 2})
    mesh = procs.spawn("member", Member, restart="transient")
    for lost in workers[:2]:
        assert mesh.add.call().get(timeout=LIMIT_S).values() == [1, 1]
        cut_power(lost, mesh.slice(hosts=0, procs=0))
        assert len(until_answered(mesh)) == 2
        mesh.replace(0)
        mesh.replace(1)
    cut_power(workers[2], mesh.slice(hosts=0, procs=0))
    with pytest.raises(HostDied):
        mesh.add.call().get(timeout=LIMIT_S)
    with pytest.raises(HostDied, match="no standby worker is left"):
        procs.replace(0)


def test_a_dead_standby_worker_is_skipped(workers: list[WorkerProcess]) -> None:
    with configured(host_lease_s=0.6):
        hosts = with_standby(workers)
    mesh = hosts.spawn_procs({"procs": 1}).spawn("member", Member)
    assert mesh.add.call().get(timeout=LIMIT_S).values() == [1]
    workers[1].end()
    cut_power(workers[0], mesh.slice(hosts=0))
    hosts.replace(0)
    assert mesh.add.call().get(timeout=LIMIT_S).values() == [1]


def test_a_standby_worker_is_reserved_for_its_job_and_free_afterwards(
    workers: list[WorkerProcess], tmp_path: Path
) -> None:
    from whole_program import run

    hosts = with_standby(workers[:2])
    hosts.initialized.get(timeout=LIMIT_S)
    ask = f"""
        from mesh_core import attach_to_workers, configure
        configure(attach_timeout_s=0.1)
        attach_to_workers([{workers[1].address!r}]).initialized.get()
        """

    def refusal() -> str:
        ended = run(tmp_path, ask)
        return ended.err if ended.status == 1 else ""

    # The worker is reserved in the background, and may be a host of this program before.
    assert "kept as a standby of a job of" in wait_until(refusal, LIMIT_S)
    shutdown_context().get()
    assert run(tmp_path, ask).status == 0


def retained_templates(worker: WorkerProcess) -> list[int]:
    """Return the retained templates on the machine of a worker."""
    found = []
    for pid in worker.descendants():
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "mesh-retained":
                found.append(pid)
    return found


class Importing(Member):
    """Tells how its process has started."""

    @endpoint
    def ancestors(self) -> list[int]:
        """Return the pids of its ancestors."""
        found = [os.getppid()]
        while found[-1] > 1:
            status = Path(f"/proc/{found[-1]}/status").read_text()
            found.append(int(status.partition("PPid:")[2].split()[0]))
        return found


def test_a_standby_worker_preloads_modules(workers: list[WorkerProcess]) -> None:
    with configured(host_lease_s=1.0):
        hosts = with_standby(workers[:2])
    hosts.preload("numpy")
    mesh = hosts.spawn_procs({"procs": 1}).spawn("member", Importing)
    assert mesh.add.call().get(timeout=LIMIT_S).values() == [1]
    wait_until(lambda: bool(retained_templates(workers[1])), LIMIT_S)
    (template,) = retained_templates(workers[1])
    cut_power(workers[0], mesh.slice(hosts=0))
    hosts.replace(0)
    assert template in mesh.slice(hosts=0).ancestors.call_one().get(timeout=LIMIT_S)
    shutdown_context().get()
    wait_until(lambda: template not in retained_templates(workers[1]), LIMIT_S)


def test_a_released_standby_worker_discards_preloaded_modules(workers: list[WorkerProcess]) -> None:
    with configured(host_lease_s=1.0):
        hosts = with_standby(workers[:2])
    hosts.preload("numpy")
    wait_until(lambda: bool(retained_templates(workers[1])), LIMIT_S)
    shutdown_context().get()
    wait_until(lambda: not retained_templates(workers[1]), LIMIT_S)


@pytest.mark.parametrize("standby", [-1, 3, 4])
def test_at_least_one_worker_must_be_a_host(workers: list[WorkerProcess], standby: int) -> None:
    with pytest.raises(ValueError, match="at least one worker must be a host"):
        attached(workers, standby=standby)
