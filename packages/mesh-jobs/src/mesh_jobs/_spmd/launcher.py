"""Launcher for scripts that are written for torchrun, on hosts that remain allocated."""

from __future__ import annotations

import uuid
from math import prod
from typing import TYPE_CHECKING

from mesh_jobs._exec.execution import Execution
from mesh_jobs._exec.rank_output import RankOutput, show_with_prefix
from mesh_jobs._spmd.first_failure import FirstFailure
from mesh_jobs._spmd.interrupts import pass_interrupts_to
from mesh_jobs._spmd.rank_command import SpmdRequest
from mesh_jobs._spmd.rendezvous import MasterAddress, find_master_address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike

    from mesh_core import Future, HostMesh
    from mesh_jobs._exec.rank_output import RankLine

__all__ = ["SpmdRun", "run_spmd"]

_MASTER_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")


def run_spmd(
    host_mesh: HostMesh,
    script: str | PathLike[str] | None = None,
    args: Sequence[str] = (),
    *,
    module: str | None = None,
    per_host: int | Mapping[str, int] = 1,
    env: Mapping[str, str] | None = None,
    workdir: str | PathLike[str] | None = None,
    output_dir: str | PathLike[str] | None = None,
    name: str = "mesh",
) -> Future[int]:
    """Run a script on every rank as torchrun would, once; call it again to run it again.

    Ranks find the variables of torchrun in their environment. `MASTER_ADDR` is a name of the first
    host that all hosts can reach, and `MASTER_PORT` is a port that is reserved there for the
    script. When a rank fails, the others are terminated, and its traceback is printed last: the one
    that torch writes for a function with `@record`, or else from stderr. Ctrl-C is forwarded to
    the ranks.

    Example:
        >>> run_spmd(state.trainers, "train.py", per_host=8).get()  # doctest: +SKIP
        0

    Args:
        host_mesh: The hosts; the first one has rank 0.
        script: The path of a script on the hosts, relative to `workdir` unless it is absolute.
        args: The arguments of the script.
        module: A module to run instead of a script, as with `python -m`.
        per_host: The number of ranks per host, or dimensions with their sizes.
        env: Environment variables, which take precedence over all others.
        workdir: The working directory of the ranks. Defaults to the worker's.
        output_dir: A local folder for the output of each rank; see `exec_command`.
        name: The name of the mesh in the output.

    Returns:
        A future of the exit status of the rank that failed first, or 0 if all ranks succeeded.
        Cancelling the future terminates the script on all ranks.

    Raises:
        ValueError: Neither or both of script and module are given, or `per_host` is not positive.
        MeshError: From the future: a rank was lost, or the hosts cannot reach the first one.
    """
    run = SpmdRun(
        host_mesh,
        script,
        args,
        module=module,
        per_host=per_host,
        env=env,
        workdir=workdir,
        name=name,
    )
    pass_interrupts_to(run.execution)
    return run.execution.in_background(lambda: run.run(output_dir))


class SpmdRun:
    """One run of a script."""

    def __init__(
        self,
        host_mesh: HostMesh,
        script: str | PathLike[str] | None,
        args: Sequence[str],
        *,
        module: str | None,
        per_host: int | Mapping[str, int],
        env: Mapping[str, str] | None,
        workdir: str | PathLike[str] | None,
        name: str,
    ) -> None:
        if (script is None) == (module is None):
            raise ValueError("pass either a script or a module")
        what = (str(script),) if script is not None else ("-m", str(module))
        self._python_args = (*what, *map(str, args))
        self._env = dict(env or {})
        self._workdir = None if workdir is None else str(workdir)
        self._name = name
        dims = {"procs": per_host} if isinstance(per_host, int) else dict(per_host)
        self._per_host = prod(dims.values())
        self.execution = Execution(host_mesh, per_host=dims, name=name)

    def run(
        self,
        output_dir: str | PathLike[str] | None = None,
        show: Callable[[RankLine], object] = show_with_prefix,
    ) -> int:
        """Run the script until all ranks have exited; return the first failed rank's status, or 0.

        Raises:
            MeshError: A rank was lost, or the hosts cannot reach the first one.
        """
        execution = self.execution
        first = FirstFailure(self._name, execution.extent, show)
        output = RankOutput(self._name, execution.extent, folder=output_dir, show=first.show)

        def exited(rank: int, status: int) -> None:
            # Ranks of a cancelled run are terminated by our signal, which is not a failure.
            if not execution.is_cancelled and first.exited(rank, status):
                execution.end()

        execution.run(self._request, output, on_exit=exited, on_error=first.record_error)
        first.print()
        return first.status

    def _request(self) -> SpmdRequest:
        if all(name in self._env for name in _MASTER_VARIABLES):
            master = MasterAddress(
                self._env[_MASTER_VARIABLES[0]], int(self._env[_MASTER_VARIABLES[1]])
            )
        else:
            master = find_master_address(self.execution.first_of_hosts(self._per_host))
        return SpmdRequest(
            self._python_args,
            self._per_host,
            master,
            uuid.uuid4().hex,
            self._env,
            self._workdir,
        )
