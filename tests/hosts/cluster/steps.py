"""Steps of programs. A program has one job at a time, whose meshes are stored here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mesh_core
from mesh_core import (
    Credentials,
    HostDied,
    HostMesh,
    MeshError,
    MeshFailure,
    MeshStopped,
    ProcDied,
    ProcMesh,
    attach_to_workers,
    configure,
    shutdown_context,
)
from mesh_core.testing import wait_until
from tests.hosts.cluster.actors import Member, Owner

#: Exceeds the duration of every call that completes, also on a busy machine.
LIMIT_S = 60.0


@dataclass
class Job:
    """The meshes that the program has created."""

    hosts: HostMesh | None = None
    procs: ProcMesh | None = None
    members: Any = None
    owner: Any = None
    told: list[str] = field(default_factory=list)


job = Job()


def attach(addresses: list[str], credentials: str, settings: dict[str, Any]) -> list[int]:
    """Attach workers, wait until they have joined, and return the shape of the mesh."""
    configure(**settings)
    mesh_core.unhandled_fault_hook = _take_note
    job.hosts = attach_to_workers(addresses, credentials=Credentials.load(credentials))
    job.hosts.initialized.get(timeout=LIMIT_S)
    return list(job.hosts.extent.values())


def why_not_attached(addresses: list[str], credentials: str, settings: dict[str, Any]) -> str:
    """Try to attach workers that are not available, and return the error."""
    try:
        attach(addresses, credentials, settings)
    except MeshError as error:
        return f"{type(error).__name__}: {error}"
    return "attached"


def spawn(procs: int = 1) -> list[tuple[str, int]]:
    """Spawn processes on each host with a member in each; return host name and pid of each."""
    assert job.hosts is not None
    job.procs = job.hosts.spawn_procs({"procs": procs})
    job.members = job.procs.spawn("member", Member)
    where: list[tuple[str, int]] = job.members.where.call().get(timeout=LIMIT_S).values()
    return where


def spawn_owner(host: int) -> int:
    """Spawn an actor on one host that owns members on all hosts; return the number of members."""
    assert job.hosts is not None
    assert job.procs is not None
    job.owner = (
        job.hosts.slice(hosts=host).spawn_procs(name="mine").spawn("owner", Owner, job.procs)
    )
    ready: int = job.owner.ready.call_one().get(timeout=LIMIT_S)
    return ready


def await_owner_told() -> list[str]:
    """Wait until the owner was notified of a failure; return all that it was notified of."""
    told: list[str] = wait_until(lambda: job.owner.told.call_one().get(timeout=LIMIT_S), LIMIT_S)
    return told


def program_told() -> list[str]:
    """Return the failures that were reported to the program."""
    return job.told


def shut_down() -> None:
    """Shut the job down; another one may start."""
    shutdown_context().get(timeout=LIMIT_S)


def stop() -> None:
    """Stop the processes, as far as they can be reached."""
    assert job.procs is not None
    job.procs.stop().get(timeout=LIMIT_S)


def echo(value: Any, host: int | None = None) -> list[Any]:
    """Send a value to the members of one host or of all hosts, and return the replies."""
    members = job.members if host is None else job.members.slice(hosts=host)
    values: list[Any] = members.echo.call(value).get(timeout=LIMIT_S).values()
    return values


def ask_each_other(first: int, second: int) -> int:
    """Make a member of one host call a member of another."""
    one = job.members.slice(hosts=first).flatten("all").slice(all=0)
    other = job.members.slice(hosts=second).flatten("all").slice(all=0)
    answer: int = one.ask.call_one(other, 7).get(timeout=LIMIT_S)
    return answer


def outcome(wait: Callable[[], Any]) -> tuple[str, float]:
    """Wait; return the kind of the failure and the duration in seconds."""
    began = time.monotonic()
    try:
        wait()
    except (HostDied, ProcDied, MeshStopped) as error:
        # An error that is raised in an actor is both of this type and an `ActorError`.
        kind = next(one for one in (HostDied, ProcDied, MeshStopped) if isinstance(error, one))
        return kind.__name__, time.monotonic() - began
    return "answered", time.monotonic() - began


def wait_for_ever(host: int) -> tuple[str, float]:
    """Call an endpoint on one host that never returns; return the outcome and its time."""
    future = job.members.slice(hosts=host).never.call()
    return outcome(lambda: future.get(timeout=LIMIT_S))


def wait_through(host: int, other: int) -> tuple[str, float]:
    """Make a member of one host wait forever for a member of another."""
    one = job.members.slice(hosts=host).flatten("all").slice(all=0)
    two = job.members.slice(hosts=other).flatten("all").slice(all=0)
    future = one.wait_for.call_one(two)
    return outcome(lambda: future.get(timeout=LIMIT_S))


def _take_note(failure: MeshFailure) -> None:
    job.told.append(f"{type(failure.error).__name__} of {failure.mesh_name}")


def attach_more(addresses: list[str], credentials: str) -> list[str]:
    """Attach more workers and return the hosts that reply; the mesh of the job stays unchanged."""
    hosts = attach_to_workers(addresses, credentials=Credentials.load(credentials))
    members = hosts.spawn_procs(name="more").spawn("more", Member)
    return [name for name, _ in members.where.call().get(timeout=LIMIT_S).values()]


def settle(seconds: float) -> None:
    """Give the operations in progress time to start."""
    time.sleep(seconds)


def timed_spawn(hosts: list[int]) -> float:
    """Spawn on some hosts until all reply, and return the duration in seconds."""
    assert job.hosts is not None
    began = time.monotonic()
    for host in hosts:
        procs = job.hosts.slice(hosts=host).spawn_procs(name="quick")
        procs.spawn("quick", Member).echo.call(1).get(timeout=LIMIT_S)
        procs.stop().get(timeout=LIMIT_S)
    return time.monotonic() - began


def echo_each(hosts: list[int]) -> list[Any]:
    """Like `echo`, on several hosts."""
    return [value for host in hosts for value in echo("x", host)]


def ask_outcome(first: int, second: int) -> tuple[str, float]:
    """Like `ask_each_other`, but return the outcome."""
    return outcome(lambda: ask_each_other(first, second))


def await_told() -> list[str]:
    """Wait until the program was notified of a failure; return all that it was notified of."""
    return list(wait_until(lambda: job.told, LIMIT_S))


def ask_to_join(addresses: list[str], credentials: str) -> None:
    """Attach to an address that claims to be a worker, without waiting."""
    attach_to_workers(addresses, credentials=Credentials.load(credentials))
