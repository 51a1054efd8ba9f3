"""Requests to hosts: slots, processes, and the replacement of a dead machine."""

from __future__ import annotations

from functools import partial
from typing import Any

from mesh_core._calls.task_future import AgentFuture
from mesh_core._core import Targets
from mesh_core._errors import HostDied
from mesh_core._runtime.runtime import runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_core._meshes.proc_mesh import ProcMesh

__all__ = ["ask_host", "ask_hosts", "drain_host", "preload_on", "replace_host", "start_again"]


def ask_host(asker: ProcMesh, host: int, method: str, *args: Any) -> Any:
    """Call the agent of a host and wait for its reply; only for short requests.

    Args:
        asker: The process that errors name as the place of the failure.
        host: The number of the host.
        method: The name of the method.
        *args: Its arguments.

    Raises:
        HostDied: The host is dead.
    """
    return ask_hosts(asker, [host], method, *args)[0]


def preload_on(hosts: Sequence[int], modules: tuple[str, ...]) -> None:
    """Request that hosts import modules for processes that start later, and do not wait.

    Standby workers import them, too.
    """
    current = runtime()
    if current.is_root:
        current.places.standby.preload(modules)
    for host in hosts:
        if host == current.identity.host and current.host_agent is not None:
            # This process is that agent. A message to it would wait until the program pauses.
            current.host_agent.preload(modules)
        else:
            current.tell_agent(host << 32, "preload", modules)


def ask_hosts(asker: ProcMesh, hosts: Sequence[int], method: str, *args: Any) -> list[Any]:
    """Send the same request to the agents of several hosts concurrently, and wait for all replies.

    Args:
        asker: The process that errors name as the place of the failure.
        hosts: The numbers of the hosts.
        method: The name of the method.
        *args: Its arguments.

    Raises:
        HostDied: One of the hosts is dead.
        Exception: An agent raised it; with several, the first in the order of `hosts`.
    """
    current = runtime()
    waits: list[Callable[[], Any]] = []
    for host in hosts:
        if host == current.identity.host and current.host_agent is not None:
            # This process is that agent, whose own thread would do the same.
            waits.append(partial(getattr(current.agent, "do_" + method), None, *args))
        else:
            waits.append(_asked(asker, host << 32, method, *args).get)
    answers: list[Any] = []
    failures: list[Exception] = []
    for wait in waits:
        try:
            answers.append(wait())
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return answers


def start_again(mesh: ProcMesh, index: int) -> bool:
    """Start a process in the slot of a dead one; return whether the old one had died.

    If its host has died too, a standby worker replaces the host first.

    Raises:
        HostDied: The host is dead, and no standby worker is available.
    """
    current = mesh._runtime
    proc = mesh._proc_of(index)
    host, slot = proc >> 32, proc & 0xFFFF_FFFF
    lost = mesh._with_region(mesh._region.member(index))
    request = current.start_requests.get(mesh._uid)
    while True:
        try:
            incarnation = ask_host(lost, host, "replace", slot, request)
            break
        except HostDied:
            # The standby worker may die too; this call raises when none is left.
            replace_host(lost, host, None, may_return=False, is_urgent=True)
    if incarnation is None:
        return False
    if not current.is_agent_of(proc):
        current.engine.proc_started(proc, incarnation)
    current.engine.watch(proc)
    return True


def replace_host(
    asker: ProcMesh, host: int, worker: str | None, *, may_return: bool, is_urgent: bool
) -> None:
    """Let the program replace the machine of a dead host.

    Args:
        asker: The process that errors name as the place of the failure.
        host: The number of the host.
        worker: The address of the worker on the new machine. Default: a standby worker.
        may_return: Whether the previous worker may be used if no standby worker is left.
        is_urgent: Whether to return without an error if the host is alive again.

    Raises:
        HostDied: No machine is available.
        RuntimeError: The host is alive.
        ValueError: The address is malformed.
    """
    current = runtime()
    if current.is_root:
        current.places.replace(host, worker, may_return=may_return, is_urgent=is_urgent)
    else:
        _asked(asker, 0, "replace_host", host, worker, may_return, is_urgent).get()


def drain_host(asker: ProcMesh, host: int, worker: str | None, timeout_s: float) -> None:
    """Let the program move a host to another machine.

    Args:
        asker: The process that errors name as the place of the failure.
        host: The number of the host.
        worker: The address of the worker on the other machine. Default: a standby worker.
        timeout_s: The maximum time to wait until the host is at rest, in seconds.
    """
    current = runtime()
    if current.is_root:
        current.places.drain(host, worker, timeout_s)
    else:
        _asked(asker, 0, "drain_host", host, worker, timeout_s).get()


def _asked(asker: ProcMesh, proc: int, method: str, *args: Any) -> AgentFuture:
    reply = runtime().call_agents(Targets([(proc, 0)]), method, *args)
    return AgentFuture(reply, asker, method, is_value=True)
