"""Execution of a command on every rank of a host mesh."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mesh_jobs._exec.execution import Execution
from mesh_jobs._exec.rank_environment import rank_environment
from mesh_jobs._exec.rank_output import RankOutput
from mesh_jobs._exec.supervised_process import Command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from mesh_core import Future, HostMesh, Point, ValueMesh

__all__ = ["CommandRequest", "exec_command", "first_failure"]


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """The same command for all ranks, with environment variables that contain the rank."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None

    @classmethod
    def of(
        cls,
        cmd: str | Sequence[str],
        env: Mapping[str, str] | None = None,
        workdir: str | PathLike[str] | None = None,
    ) -> CommandRequest:
        """Create a request from a shell command line, or from a program and its arguments.

        Raises:
            ValueError: The command is empty.
        """
        if not cmd or (isinstance(cmd, str) and not cmd.strip()):
            raise ValueError("the command is empty: give a command to run")
        argv = ("/bin/sh", "-c", cmd) if isinstance(cmd, str) else tuple(map(str, cmd))
        return cls(argv, dict(env or {}), None if workdir is None else str(workdir))

    def command(self, place: Point) -> Command:
        """Return the command of one rank."""
        env = {**rank_environment(place, place.extent), **self.env}
        return Command(self.argv, env, self.workdir)


def exec_command(
    host_mesh: HostMesh,
    cmd: str | Sequence[str],
    env: Mapping[str, str] | None = None,
    workdir: str | PathLike[str] | None = None,
    output_dir: str | PathLike[str] | None = None,
    per_host: Mapping[str, int] | None = None,
    *,
    name: str = "mesh",
) -> Future[int]:
    """Run a command on every rank of a host mesh.

    The output of the ranks is printed here line by line, each line prefixed with the name of its
    rank. When a command exits, all its descendants are terminated. The command finds its rank in
    `MESH_RANK_<DIM>` and `MESH_SIZE_<DIM>`, and the worker's Python interpreter as `python`.

    Example:
        >>> exec_command(hosts, "nvidia-smi -L").get()          # doctest: +SKIP
        [mesh hosts=0] GPU 0: ...
        0

    Args:
        host_mesh: The hosts.
        cmd: A command line for `/bin/sh`, or a program and its arguments.
        env: Variables to add to the environment of the workers.
        workdir: The working directory of the command. Defaults to the worker's.
        output_dir: A local folder for the output of each rank, stored under the name of the mesh,
            as in `output_dir/mesh/hosts-0/stdout.txt`, `stderr.txt` and `exit_code.txt`.
        per_host: Additional dimensions with their sizes, for several ranks per host.
        name: The name of the mesh in the output.

    Returns:
        A future of the exit status of the first rank with a nonzero status, or 0 if all ranks
        succeeded. The status is 128 + N for signal N. Cancelling the future terminates the command
        on all ranks.

    Raises:
        ValueError: The command is empty, or a size is not a positive number.
        MeshError: From the future: a rank was lost. The command is terminated on the others.
    """
    request = CommandRequest.of(cmd, env, workdir)
    execution = Execution(host_mesh, per_host=per_host, name=name)
    output = RankOutput(name, execution.extent, folder=output_dir)
    return execution.in_background(lambda: first_failure(execution.run(request, output)))


def first_failure(statuses: ValueMesh[int]) -> int:
    """Return the first nonzero status, or zero."""
    return next((status for status in statuses.values() if status), 0)
