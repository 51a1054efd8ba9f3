"""Launcher for scripts that are written for torchrun, on hosts that remain allocated."""

from __future__ import annotations

import sys
import uuid
from math import prod
from typing import TYPE_CHECKING

from mesh_jobs._errors import ScriptFailed
from mesh_jobs._exec.execution import Execution
from mesh_jobs._exec.rank_output import RankOutput, show_with_prefix
from mesh_jobs._spec import check_count
from mesh_jobs._spmd.first_failure import FirstFailure
from mesh_jobs._spmd.interrupts import pass_interrupts_to
from mesh_jobs._spmd.rank_command import SpmdRequest
from mesh_jobs._spmd.rendezvous import MasterAddress, MasterReservation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike

    from mesh_core import Future, HostMesh
    from mesh_jobs._exec.rank_output import RankLine
    from mesh_jobs._spmd.rank_failure import RankFailure

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
    max_restarts: int = 0,
    check: bool = False,
) -> Future[int]:
    """Run a script on every rank as torchrun would; call it again to run it again.

    Ranks find the variables of torchrun in their environment. `MASTER_ADDR` is a name of the first
    host that all hosts can reach, and `MASTER_PORT` is a port that is reserved there for the
    script. When a rank fails, the others are terminated, and its traceback is printed last: the one
    that torch writes for a function with `@record`, or else from stderr. With `max_restarts`, all
    ranks are then started again on the same hosts. Ctrl-C is forwarded to the ranks; after that,
    they are not restarted.

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
        max_restarts: How often all ranks are started again after one of them has failed. They get
            another `MASTER_PORT`, and `TORCHELASTIC_RESTART_COUNT` counts the restarts.
        check: Raise `ScriptFailed` from the future instead of returning a nonzero status.

    Returns:
        A future of the exit status of the rank that failed first after the last restart, or 0 if
        all ranks succeeded. Cancelling the future terminates the script on all ranks.

    Raises:
        ValueError: Neither or both of script and module are given, or `per_host` is not positive.
        ConfigError: `max_restarts` is negative or not a whole number.
        ScriptFailed: From the future: a rank failed, and `check` is set.
        MeshError: From the future: a rank was lost, which is not followed by a restart, or the
            hosts cannot reach the first one.
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
        max_restarts=max_restarts,
    )
    pass_interrupts_to(run.execution)
    work = run.run_checked if check else run.run
    return run.execution.in_background(lambda: work(output_dir))


class SpmdRun:
    """One run of a script, with the restarts of its ranks.

    Attributes:
        failures: The rank that failed first in each round that has failed.
    """

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
        max_restarts: int,
    ) -> None:
        check_count("max_restarts", max_restarts, 0)
        if (script is None) == (module is None):
            raise ValueError("pass either a script or a module")
        what = (str(script),) if script is not None else ("-m", str(module))
        self._python_args = (*what, *map(str, args))
        self._env = dict(env or {})
        self._workdir = None if workdir is None else str(workdir)
        self._name = name
        dims = {"procs": per_host} if isinstance(per_host, int) else dict(per_host)
        self._per_host = prod(dims.values())
        self._max_restarts = max_restarts
        self._run_id = uuid.uuid4().hex
        self._reservation: MasterReservation | None = None
        self.failures: list[RankFailure] = []
        self.execution = Execution(host_mesh, per_host=dims, name=name)

    def run(
        self,
        output_dir: str | PathLike[str] | None = None,
        show: Callable[[RankLine], object] = show_with_prefix,
    ) -> int:
        """Run the script until all ranks have exited, and again while restarts are left.

        Returns:
            The status of the rank that failed first in the last round, or 0.

        Raises:
            MeshError: A rank was lost, or the hosts cannot reach the first one.
        """
        execution = self.execution
        first = FirstFailure(self._name, execution.extent, show)
        output = RankOutput(self._name, execution.extent, folder=output_dir, show=first.show)
        try:
            while (failure := self._run_round(first, output)) is not None:
                self.failures.append(failure)
                _print(f"mesh: {failure}")
                if not self._may_restart():
                    return failure.exit_code
                _print(f"mesh: {self._restart_text()}")
        finally:
            execution.close()
        return 0

    def run_checked(self, output_dir: str | PathLike[str] | None = None) -> int:
        """Run the script as `run` does, but raise an error if it fails.

        Raises:
            ScriptFailed: A rank failed in the last round.
        """
        status = self.run(output_dir)
        if status:
            raise ScriptFailed(self.failures)
        return status

    def _run_round(self, first: FirstFailure, output: RankOutput) -> RankFailure | None:
        """Run the script until all ranks and their descendants have exited."""
        execution = self.execution

        def exited(rank: int, status: int) -> None:
            # Ranks of a cancelled run are terminated by our signal, which is not a failure.
            if not execution.is_cancelled and first.exited(rank, status):
                execution.end()

        execution.run_round(self._request, output, on_exit=exited, on_error=first.record_error)
        return first.finish_round(execution.host_names, len(self.failures))

    def _may_restart(self) -> bool:
        is_stopped = self.execution.is_cancelled or self.execution.is_signalled
        return not is_stopped and len(self.failures) <= self._max_restarts

    def _restart_text(self) -> str:
        count, most = len(self.failures), self._max_restarts
        size = self.execution.extent.nelements
        return f"restarting all {size} ranks: restart {count} of {most}, {most - count} left"

    def _request(self) -> SpmdRequest:
        return SpmdRequest(
            self._python_args,
            self._per_host,
            self._master(),
            self._run_id,
            len(self.failures),
            self._max_restarts,
            self._env,
            self._workdir,
        )

    def _master(self) -> MasterAddress:
        """Return an address whose port differs from that of the previous round, unless it is given.

        A store of the previous round could otherwise receive late connections of this one.
        """
        if all(name in self._env for name in _MASTER_VARIABLES):
            address, port = (self._env[name] for name in _MASTER_VARIABLES)
            return MasterAddress(address, int(port))
        if self._reservation is not None:
            return self._reservation.renew()
        self._reservation = MasterReservation(self.execution.first_of_hosts(self._per_host))
        return self._reservation.master


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
