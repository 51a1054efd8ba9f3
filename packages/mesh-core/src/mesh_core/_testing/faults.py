"""Faults on purpose, and waiting for what follows, for tests."""

from __future__ import annotations

import signal
import time
from typing import TypeVar

from mesh_core._calls.task_future import AgentFuture
from mesh_core._core import Targets
from mesh_core._hosts.requests import ask_host
from mesh_core._program.runtime import runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mesh_core._actors.actor import Actor
    from mesh_core._meshes.actor_mesh import ActorMesh
    from mesh_core._meshes.mesh import ProcMesh
    from mesh_core._meshes.shape import Point

__all__ = ["kill_proc", "proc_pid", "wait_until"]

T = TypeVar("T")
# Between two looks at a condition, at first and at last.
_LOOK_S, _LOOK_S_MAX = 0.0005, 0.02


def proc_pid(mesh: ProcMesh | ActorMesh[Any] | Actor, rank: int | Point = 0) -> int:
    """Gives the process id of one rank of a mesh, which its host knows; waits until it runs.

    Raises:
        IndexError: There is no such rank.
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
    """Sends a signal to the process of one rank of a mesh, whichever host it is on.

    Does not wait for the end: call an actor there, or use `wait_until`.

    Args:
        mesh: Processes, or actors in them.
        rank: Which one.
        signal: Which signal.

    Returns:
        The process id, which its host knows.

    Raises:
        IndexError: There is no such rank.
        ProcDied: The process is dead already.
        HostDied: Its host is.
    """
    pid = proc_pid(mesh, rank)
    member: Any = mesh[rank]
    proc = member._proc_of(0)
    ask_host(proc >> 32, "signal", proc & 0xFFFF_FFFF, signal)
    return pid


def wait_until(condition: Callable[[], T], deadline: float = 10.0) -> T:
    """Waits until a condition holds, and gives what it returned.

    Args:
        condition: Asked again and again until what it returns is true.
        deadline: Seconds after which to give up.

    Raises:
        AssertionError: It did not come to hold in time.
    """
    until = time.monotonic() + deadline
    pause_s = _LOOK_S
    while not (found := condition()):
        if time.monotonic() >= until:
            name = getattr(condition, "__qualname__", repr(condition))
            raise AssertionError(f"{name} did not come to hold in {deadline} s")
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _LOOK_S_MAX)
    return found
