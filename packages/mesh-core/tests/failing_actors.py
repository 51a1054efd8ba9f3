"""Actors that fail in every possible way."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from typing import Any

from mesh_core import (
    Actor,
    MeshFailure,
    Port,
    ProcMesh,
    RestartPolicy,
    concurrent_endpoint,
    context,
    endpoint,
    this_host,
)


class Worker(Actor):
    """Counts, and fails on request."""

    def __init__(self, fails: str = "", cleanup: str = "", log: str = "") -> None:
        self.count = 0
        self.cleanup = cleanup
        self.log = log
        if fails == "once":
            # The file records that the actor was created here.
            if not os.path.exists(log):
                note(log, "here")
                raise ValueError("cannot begin the first time")
        elif fails:
            raise ValueError(f"cannot begin: {fails}")

    @endpoint
    def add(self, n: int = 1) -> int:
        self.count += n
        return self.count

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    @endpoint
    def spin(self) -> None:
        while True:
            pass

    @endpoint
    def wait_for(self, path: str) -> None:
        while not os.path.exists(path):
            time.sleep(0.001)

    @endpoint
    def fail(self, text: str = "boom") -> None:
        raise KeyError(text)

    @endpoint(explicit_response_port=True)
    def fail_with_port(self, port: Port[int]) -> None:
        raise KeyError("with a port")

    @endpoint
    def crash(self) -> None:
        ctypes.string_at(0)

    @endpoint
    def leave(self, status: int) -> None:
        print("the last words of", os.getpid())
        os._exit(status)

    @endpoint
    def leave_by_raising(self) -> None:
        raise SystemExit(3)

    @endpoint
    def abort(self, reason: str) -> str:
        context().actor_instance.abort(reason)
        return "still answered"

    @endpoint
    def retire(self) -> str:
        context().actor_instance.stop()
        return "still answered"

    @endpoint
    def print(self, *lines: str) -> None:
        for line in lines:
            print(line)

    def __cleanup__(self, error: Exception | None) -> None:
        if self.log:
            note(self.log, f"cleanup of worker: {error!r}")
        if self.cleanup == "raises":
            raise OSError("cannot clean up")
        if self.cleanup == "hangs":
            time.sleep(1000)


class AsyncWorker(Actor):
    """The same with async endpoints."""

    def __init__(self, cleanup: str = "") -> None:
        self.count = 0
        self.cleanup = cleanup

    @endpoint
    async def add(self, n: int = 1) -> int:
        self.count += n
        return self.count

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def sleep(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @endpoint
    async def fail(self, text: str = "boom") -> None:
        raise KeyError(text)

    @concurrent_endpoint
    async def sleep_beside(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @concurrent_endpoint
    async def fail_beside(self) -> None:
        raise KeyError("beside")

    @endpoint
    def plain_sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    @endpoint
    def plain_spin(self) -> None:
        while True:
            pass

    async def __cleanup__(self, error: Exception | None) -> None:
        if self.cleanup == "raises":
            raise OSError("cannot clean up")
        if self.cleanup == "hangs":
            await asyncio.sleep(1000)


class Owner(Actor):
    """Spawns workers, and records the failures that it is notified of."""

    def __init__(self, verdict: Any, log: str = "") -> None:
        self.verdict = verdict
        self.log = log
        self.heard: list[MeshFailure] = []
        self.children: list[Any] = []

    @endpoint
    def spawn(self, procs: ProcMesh, name: str = "child", restart: Any = None) -> Any:
        child = procs.spawn(name, Worker, log=self.log, restart=restart)
        self.children.append(child)
        return child

    @endpoint
    def spawn_owner(self, procs: ProcMesh, verdict: Any) -> Any:
        return procs.spawn("inner", Owner, verdict)

    @endpoint
    def spawn_procs(self, count: int) -> Any:
        self.procs = this_host().spawn_procs({"n": count}, name="owned")
        return self.procs, self.procs.spawn("child", Worker, log=self.log)

    @endpoint
    def told(self) -> list[tuple[str, int | None, str]]:
        return [(f.mesh_name, f.rank, type(f.error).__name__) for f in self.heard]

    @endpoint
    def knows_its_meshes(self) -> bool:
        return all(f.mesh in self.children for f in self.heard)

    @endpoint
    def add(self) -> int:
        return 1

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    @endpoint
    def replace_procs(self, rank: int) -> None:
        self.procs.replace(rank)

    def __supervise__(self, failure: MeshFailure) -> object:
        self.heard.append(failure)
        if self.verdict == "raises":
            raise RuntimeError("cannot supervise")
        return self.verdict

    def __cleanup__(self, error: Exception | None) -> None:
        if self.log:
            note(self.log, f"cleanup of owner: {type(error).__name__}")


class AsyncOwner(Owner):
    """The same on an event loop, and permanently busy."""

    @endpoint
    async def wait_until_told(self) -> int:
        while not self.heard:  # noqa: ASYNC110 - it is busy all the time
            await asyncio.sleep(0.01)
        return len(self.heard)

    @endpoint
    async def wait(self) -> None:
        await asyncio.Event().wait()

    async def __supervise__(self, failure: MeshFailure) -> object:  # type: ignore[override]
        self.heard.append(failure)
        return self.verdict


def kill_held(mesh: Any) -> Any:
    """Kill the process of an actor during a call, and return the future of that call.

    The death also concerns the owner of the processes, which is this program: it treats the failure
    that a pending call will report as handled. Timing does not matter.
    """
    pid = mesh.pid.call_one().get()
    held = mesh.sleep.call_one(1000)
    os.kill(pid, signal.SIGKILL)
    return held


def note(path: str, line: str) -> None:
    """Append a line to a file atomically."""
    with open(path, "a") as log:
        log.write(line + "\n")


SLOW_DEATHS = RestartPolicy("permanent", intensity_max=1, period_s=60)
