"""Steps of programs: a program has one job at a time, and keeps its meshes here."""

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
from tests.hosts.crew.actors import Member, Owner

#: Longer than any answer takes that does come, also on a busy machine.
LIMIT_S = 60.0


@dataclass
class Job:
    """What the program has made."""

    hosts: HostMesh | None = None
    procs: ProcMesh | None = None
    members: Any = None
    owner: Any = None
    told: list[str] = field(default_factory=list)


job = Job()


def attach(addresses: list[str], credentials: str, settings: dict[str, Any]) -> list[int]:
    """Attaches to workers, and waits until they have joined; returns the shape."""
    configure(**settings)
    mesh_core.unhandled_fault_hook = _take_note
    job.hosts = attach_to_workers(addresses, credentials=Credentials.load(credentials))
    job.hosts.initialized.get(timeout=LIMIT_S)
    return list(job.hosts.extent.values())


def why_not_attached(addresses: list[str], credentials: str, settings: dict[str, Any]) -> str:
    """Attaches to workers that are not to be had; returns the error."""
    try:
        attach(addresses, credentials, settings)
    except MeshError as error:
        return f"{type(error).__name__}: {error}"
    return "attached"


def spawn(procs: int = 1) -> list[tuple[str, int]]:
    """Starts so many processes on each host with a member in each; says where they are."""
    assert job.hosts is not None
    job.procs = job.hosts.spawn_procs({"procs": procs})
    job.members = job.procs.spawn("member", Member)
    where: list[tuple[str, int]] = job.members.where.call().get(timeout=LIMIT_S).values()
    return where


def spawn_owner(host: int) -> int:
    """Spawns an actor on one host that owns members on all; says how many."""
    assert job.hosts is not None
    assert job.procs is not None
    job.owner = (
        job.hosts.slice(hosts=host).spawn_procs(name="mine").spawn("owner", Owner, job.procs)
    )
    ready: int = job.owner.ready.call_one().get(timeout=LIMIT_S)
    return ready


def owner_told() -> list[str]:
    """What the owner was told of what it owns."""
    told: list[str] = job.owner.told.call_one().get(timeout=LIMIT_S)
    return told


def program_told() -> list[str]:
    """What the program was told of what it owns."""
    return job.told


def shut_down() -> None:
    """Ends the job; another one may begin."""
    shutdown_context().get(timeout=LIMIT_S)


def stop() -> None:
    """Stops the processes, those that can still be."""
    assert job.procs is not None
    job.procs.stop().get(timeout=LIMIT_S)


def echo(value: Any, host: int | None = None) -> list[Any]:
    """Sends a value to members, of one host or of all, and returns what comes back."""
    members = job.members if host is None else job.members.slice(hosts=host)
    values: list[Any] = members.echo.call(value).get(timeout=LIMIT_S).values()
    return values


def ask_each_other(first: int, second: int) -> int:
    """Has a member of one host ask one of another."""
    one = job.members.slice(hosts=first).flatten("all").slice(all=0)
    other = job.members.slice(hosts=second).flatten("all").slice(all=0)
    answer: int = one.ask.call_one(other, 7).get(timeout=LIMIT_S)
    return answer


def outcome(wait: Callable[[], Any]) -> tuple[str, float]:
    """Waits; returns what it ended with, and how long after the beginning."""
    began = time.monotonic()
    try:
        wait()
    except (HostDied, ProcDied, MeshStopped) as error:
        # Raised in an actor it comes as this and as an ActorError.
        kind = next(one for one in (HostDied, ProcDied, MeshStopped) if isinstance(error, one))
        return kind.__name__, time.monotonic() - began
    return "answered", time.monotonic() - began


def wait_for_ever(host: int) -> tuple[str, float]:
    """Calls what never answers, on one host; says how that ended, and when."""
    future = job.members.slice(hosts=host).never.call()
    return outcome(lambda: future.get(timeout=LIMIT_S))


def wait_through(host: int, other: int) -> tuple[str, float]:
    """Has a member of one host wait for ever for one of another."""
    one = job.members.slice(hosts=host).flatten("all").slice(all=0)
    two = job.members.slice(hosts=other).flatten("all").slice(all=0)
    future = one.wait_for.call_one(two)
    return outcome(lambda: future.get(timeout=LIMIT_S))


def _take_note(failure: MeshFailure) -> None:
    job.told.append(f"{type(failure.error).__name__} of {failure.mesh_name}")


def attach_more(addresses: list[str], credentials: str) -> list[str]:
    """Attaches to more workers, and says who answers there; the job's mesh stays as it is."""
    hosts = attach_to_workers(addresses, credentials=Credentials.load(credentials))
    members = hosts.spawn_procs(name="more").spawn("more", Member)
    return [name for name, _ in members.where.call().get(timeout=LIMIT_S).values()]


def settle(seconds: float) -> None:
    """Lets what was begun get under way."""
    time.sleep(seconds)


def timed_spawn(hosts: list[int]) -> float:
    """Spawns on some hosts, until all answer; says how long that took."""
    assert job.hosts is not None
    began = time.monotonic()
    for host in hosts:
        procs = job.hosts.slice(hosts=host).spawn_procs(name="quick")
        procs.spawn("quick", Member).echo.call(1).get(timeout=LIMIT_S)
        procs.stop().get(timeout=LIMIT_S)
    return time.monotonic() - began


def echo_each(hosts: list[int]) -> list[Any]:
    """As `echo`, on several hosts."""
    return [value for host in hosts for value in echo("x", host)]


def ask_outcome(first: int, second: int) -> tuple[str, float]:
    """As `ask_each_other`; says how it ended."""
    return outcome(lambda: ask_each_other(first, second))


def await_told() -> list[str]:
    """Waits until the program was told of something."""
    until = time.monotonic() + LIMIT_S
    while not job.told and time.monotonic() < until:
        time.sleep(0.01)
    return list(job.told)


def ask_to_join(addresses: list[str], credentials: str) -> None:
    """Attaches to what says that it is a worker, and waits for nothing."""
    attach_to_workers(addresses, credentials=Credentials.load(credentials))
