"""The program of a campaign; each function is a step that the campaign requests."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

import mesh_core
from mesh_core import (
    Credentials,
    HostMesh,
    MeshFailure,
    ProcMesh,
    add_standby_workers,
    attach_to_workers,
    configure,
    shutdown_context,
)
from mesh_core.testing import proc_pid, wait_until
from mesh_tensor.training import DiskCheckpoints, FaultTolerantTraining, Recovery
from tests.campaign.training import FaultyTraining
from tools.workspace import ROOT

#: More steps than any campaign needs.
FOREVER = 1 << 40
HEARTBEAT_S = 0.5


@dataclass
class _Program:
    hosts: HostMesh
    procs: ProcMesh
    training: FaultTolerantTraining
    thread: threading.Thread | None = None
    error: BaseException | None = None
    last_step: int = FOREVER


_program: _Program | None = None


def current() -> _Program:
    """Return the objects that `start` has created."""
    assert _program is not None
    return _program


def start(
    addresses: list[str],
    standby: int,
    keys: str,
    folder: str,
    disk: str,
    min_ranks: int | None = None,
) -> int:
    """Attach the workers and prepare training; return the number of ranks."""
    global _program
    if str(ROOT / "examples") not in sys.path:
        sys.path.insert(0, str(ROOT / "examples"))
    configure(heartbeat_s=HEARTBEAT_S, stop_grace_s=0.5)
    mesh_core.unhandled_fault_hook = _ignore
    credentials = Credentials.load(keys)
    hosts = attach_to_workers(addresses, credentials=credentials, standby=standby)
    procs = hosts.spawn_procs(name="trainers")
    training = FaultTolerantTraining(
        procs,
        FaultyTraining,
        folder,
        disk=DiskCheckpoints(disk, every=50, kept=1) if disk else None,
        stall_timeout_s=2.0,
        attempts=20,
        min_ranks=min_ranks,
    )
    _program = _Program(hosts, procs, training)
    return len(procs)


def begin() -> None:
    """Train in a thread, until `finish`."""
    program = current()

    def train() -> None:
        try:
            while program.training.step < program.last_step:
                # In small parts, so that `finish` takes effect soon.
                program.training.run(min(program.training.step + 10, program.last_step))
        except BaseException as error:
            program.error = error

    program.thread = threading.Thread(target=train, name="training", daemon=True)
    program.thread.start()


def wait_for_steps(count: int, limit_s: float) -> int:
    """Wait until so many more steps were trained; return how many were trained in all."""
    program = current()
    target = program.training.steps_done + count
    return _wait(lambda: program.training.steps_done >= target, limit_s)


def wait_for_recovery(known: int, limit_s: float) -> list[Recovery]:
    """Wait for another recovery and the steps after it; return all recoveries after `known`."""
    training = current().training
    _wait(lambda: len(training.recoveries) > known, limit_s)
    target = training.recoveries[-1].resumed_step + 1
    _wait(lambda: training.steps_done >= target, limit_s)
    return training.recoveries[known:]


def recovery_count() -> int:
    """Return the number of recoveries."""
    return len(current().training.recoveries)


def pid(rank: int) -> int:
    """Return the pid of a rank on its host."""
    return proc_pid(current().procs, rank)


def host_names() -> list[str]:
    """Return the name of the host of each rank."""
    return current().training.host_names


def add_standby(addresses: list[str]) -> None:
    """Reserve more standby workers."""
    add_standby_workers(current().hosts, addresses)


def add_host(address: str, keys: str, limit_s: float) -> int:
    """Attach another worker, and let a rank on it join; return the number of ranks."""
    hosts = attach_to_workers([address], credentials=Credentials.load(keys))
    training = current().training
    training.add(hosts.spawn_procs(name="more")).result(limit_s)
    return training.size


def drain_host(rank: int, limit_s: float) -> int:
    """Let the ranks of a host leave; return the number of ranks."""
    program = current()
    program.training.drain(program.hosts.slice(hosts=rank)).result(limit_s)
    return program.training.size


def finish(last_step: int, limit_s: float) -> tuple[int, str, dict[int, float]]:
    """Train to the last step, or stop soon if it has passed.

    Returns:
        The number of steps, a hash of the weights, and the losses.
    """
    program = current()
    program.last_step = last_step
    if program.thread is None:
        begin()
    thread = program.thread
    assert thread is not None
    thread.join(limit_s)
    if program.error is not None:
        raise program.error
    if thread.is_alive():
        raise TimeoutError(f"training did not end within {limit_s} s")
    weights = program.training.state_dict()["model"]
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(weights[name].numpy().tobytes())
    return program.training.step, digest.hexdigest(), dict(program.training.losses)


def end() -> None:
    """Stop training and leave the hosts."""
    global _program
    current().training.close()
    shutdown_context().get(60)
    _program = None


def _wait(condition: Callable[[], bool], limit_s: float) -> int:
    """Wait until a condition is true or training has ended; return how many steps were trained."""
    program = current()
    wait_until(lambda: condition() or program.error is not None, limit_s)
    if program.error is not None:
        raise program.error
    return program.training.steps_done


def _ignore(failure: MeshFailure) -> None:
    """Failures between two calls are found by the training itself."""
