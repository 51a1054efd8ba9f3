"""Runs a program under many seeds, on all processors, and repeats the first run that fails."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import pickle
import signal
import traceback

from mesh_core._errors import MeshError
from mesh_core._simulation.cluster import LIMIT_S, simulated
from mesh_core._simulation.faults import SimulatedFaults
from mesh_core._system.kernel import die_with_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from mesh_core._simulation.cluster import SimulatedCluster

__all__ = ["SimulationNotRepeatable", "mesh_simulation"]

_PARAMETER = "cluster"
_ANY_FAULTS = SimulatedFaults()
_EVENTS_MAX = 20


class SimulationNotRepeatable(MeshError):
    """A seed has failed, and passes when it is repeated."""


# Tracebacks show the public name.
SimulationNotRepeatable.__module__ = "mesh_core.testing"


def mesh_simulation(
    seeds: int | Iterable[int] = 100,
    *,
    hosts: int = 0,
    standby: int = 0,
    faults: SimulatedFaults | None = _ANY_FAULTS,
    limit_s: float = LIMIT_S,
    processes: int | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Run a test in a simulated cluster, once for each seed.

    The first seed that fails is run again, so that the test raises its exception; notes of the
    exception name the seed and the faults. A test with a parameter `cluster` gets the
    `SimulatedCluster`; all other parameters are fixtures of pytest. The test may be a coroutine
    function.

    Args:
        seeds: The number of seeds, from 0 on, or the seeds themselves.
        hosts: The number of hosts in addition to the host of the program.
        standby: The number of standby hosts, which replace hosts that are lost.
        faults: The faults that may occur; None for none.
        limit_s: The virtual time after which a run counts as stuck, in seconds.
        processes: The number of forked processes that share the seeds. Default: the number of
            processors; with one, all seeds run in this process.

    Raises:
        ValueError: No seeds are given.
    """
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen:
        raise ValueError(f"seeds={seeds!r} contains no seed: pass a number, or a list of seeds")

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        signature = inspect.signature(function)

        def run(seed: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            with simulated(
                hosts, seed=seed, standby=standby, faults=faults, limit_s=limit_s
            ) as cluster:
                given = {_PARAMETER: cluster} if _PARAMETER in signature.parameters else {}
                try:
                    value = function(*args, **kwargs, **given)
                    if inspect.iscoroutine(value):
                        asyncio.run(value)
                except BaseException as error:
                    _add_notes(error, cluster)
                    raise

        @functools.wraps(function)
        def test(*args: Any, **kwargs: Any) -> None:
            count = min(processes or os.cpu_count() or 1, len(chosen))
            if count == 1:
                for seed in chosen:
                    run(seed, args, kwargs)
                return
            failed = _failed_seeds(lambda seed: run(seed, args, kwargs), chosen, count)
            if failed:
                seed, text = min(failed)
                run(seed, args, kwargs)
                raise SimulationNotRepeatable(
                    f"seed {seed} has failed, and passes when it is repeated: the program depends "
                    f"on something outside of the simulation\n{text}"
                )

        kept = [one for name, one in signature.parameters.items() if name != _PARAMETER]
        test.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return test

    return decorate


def _add_notes(error: BaseException, cluster: SimulatedCluster) -> None:
    error.add_note(
        f"seed {cluster.seed}, after {cluster.now_s:.6f} s of virtual time; "
        f"repeat this run with seeds=[{cluster.seed}]"
    )
    for event in cluster.events[-_EVENTS_MAX:]:
        error.add_note(f"fault: {event}")


def _failed_seeds(
    run: Callable[[int], None], seeds: list[int], count: int
) -> list[tuple[int, str]]:
    """Run seeds in forked processes; return the first one that failed in each, with its error."""
    children = []
    for index in range(count):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _run_share(run, seeds[index::count], write)
        os.close(write)
        children.append((pid, read))
    failed = []
    try:
        while children:
            pid, read = children[0]
            with open(read, "rb", closefd=False) as pipe:
                report = pipe.read()
            os.close(read)
            del children[0]
            _, status = os.waitpid(pid, 0)
            if report:
                failed.append(pickle.loads(report))
            elif status:
                raise MeshError(f"a process that ran seeds has ended with wait status {status}")
    finally:
        # After an error or a timeout of the test, the other results are not needed.
        for pid, read in children:
            os.close(read)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return failed


def _run_share(run: Callable[[int], None], seeds: list[int], write: int) -> None:
    """Run the seeds of a forked process, and end it."""
    exit_now, status = os._exit, 1
    try:
        die_with_parent(signal.SIGKILL)
        for seed in seeds:
            try:
                run(seed)
            except BaseException:
                report = pickle.dumps((seed, traceback.format_exc()))
                with open(write, "wb", closefd=False) as pipe:
                    pipe.write(report)
                break
        status = 0
    finally:
        exit_now(status)
