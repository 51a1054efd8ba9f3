"""Fault injection for tests, and waiting for the consequences."""

from __future__ import annotations

import signal
import time
from typing import TypeVar

from mesh_core._calls.task_future import AgentFuture
from mesh_core._core import Targets
from mesh_core._meshes.host_requests import ask_host
from mesh_core._meshes.proc_mesh import this_proc
from mesh_core._runtime.runtime import runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mesh_core._calls.actor import Actor
    from mesh_core._meshes.actor_mesh import ActorMesh
    from mesh_core._meshes.proc_mesh import ProcMesh
    from mesh_core._shapes.shape import Point

__all__ = ["kill_proc", "proc_pid", "wait_until"]

T = TypeVar("T")
# Initial and maximum interval between two evaluations of a condition.
_LOOK_S, _LOOK_S_MAX = 0.0005, 0.02


def proc_pid(mesh: ProcMesh | ActorMesh[Any] | Actor, rank: int | Point = 0) -> int:
    """Return the process id of one rank of a mesh, valid on its host; wait until it runs.

    Raises:
        IndexError: The mesh has no such rank.
        ProcDied: The process is dead.
    """
    member: Any = mesh[rank]
    targets = Targets([(member._proc_of(0), 0)])
    pid: int = AgentFuture(
        runtime().call_agents(targets, "pid"), member, "pid", is_value=True
    ).get()
    return pid


def kill_proc(
    mesh: ProcMesh | ActorMesh[Any] | Actor,
    rank: int | Point = 0,
    signal: int = signal.SIGKILL,
) -> int:
    """Send a signal to the process of one rank of a mesh, on any host.

    This function does not wait until the process has ended: to do so, call an actor in it, or use
    `wait_until`.

    Args:
        mesh: A mesh of processes, or of actors in them.
        rank: The rank of the process.
        signal: The number of the signal.

    Returns:
        The process id, valid on its host.

    Raises:
        IndexError: The mesh has no such rank.
        ProcDied: The process is already dead.
        HostDied: The host of the process is dead.
    """
    pid = proc_pid(mesh, rank)
    member: Any = mesh[rank]
    proc = member._proc_of(0)
    ask_host(this_proc(), proc >> 32, "signal", proc & 0xFFFF_FFFF, signal)
    return pid


def wait_until(condition: Callable[[], T], deadline: float = 10.0) -> T:
    """Wait until a condition is true and return its result.

    Args:
        condition: Called repeatedly until its result is true.
        deadline: Maximum time to wait, in seconds.

    Raises:
        AssertionError: The condition was not true before the deadline.
    """
    until = time.monotonic() + deadline
    pause_s = _LOOK_S
    while not (found := condition()):
        if time.monotonic() >= until:
            name = getattr(condition, "__qualname__", repr(condition))
            raise AssertionError(f"{name} did not become true in {deadline} s")
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _LOOK_S_MAX)
    return found
