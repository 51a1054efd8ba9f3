"""The input of a backend: the spec of a job, and the command of each worker."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mesh_core import Credentials
from mesh_jobs._atomic_files import write_private
from mesh_jobs._spec import JobSpec

__all__ = ["AllocationRequest", "WorkerCommand"]


@dataclass(frozen=True)
class WorkerCommand:
    """The command that starts the worker of one host.

    Attributes:
        mesh: The mesh of the host.
        rank: The rank of the host in the mesh; `env:NAME` if the worker reads it from its
            environment.
        argv: The command line.
        env: Additional environment variables; they contain no secrets.
        report_file: The file to which the worker writes its report; None if it only prints it.
        secret_file: The file from which the worker reads its secret; `-` for its standard input.
    """

    mesh: str
    rank: int | str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    report_file: str | None
    secret_file: str
    _issue: Callable[[], bytes] = field(repr=False, compare=False)

    @property
    def secret(self) -> bytes:
        """The credentials of the worker, which must not be readable by anyone else.

        Pass them in a private file, on the standard input of `ssh`, or in a Kubernetes Secret. Each
        access issues new credentials, and all of them are equally valid.
        """
        return self._issue()

    def save_secret(self) -> None:
        """Write the secret to `secret_file`, readable only by its owner.

        Raises:
            OSError: The file cannot be written.
        """
        write_private(Path(self.secret_file), self.secret)


@dataclass(frozen=True)
class AllocationRequest:
    """An allocation request, as the backend receives it.

    Attributes:
        id: The unique id of the allocation, chosen by the program. A retry after the program died
            before it received its allocation uses the same id.
        spec: The requested job.
        folder: The job's folder on the machine of the program. It contains `workers/` for reports,
            `keys/` for secrets and `logs/`; all of them are private and removed with the job.
    """

    id: str
    spec: JobSpec
    folder: Path
    _credentials: Credentials | None = field(default=None, repr=False, compare=False)

    def hosts(self) -> Iterator[tuple[str, int]]:
        """Iterate over the mesh and the rank of each requested host."""
        for mesh in self.spec.meshes:
            for rank in range(mesh.hosts):
                yield mesh.name, rank

    def report_file(self, mesh: str, rank: int | str) -> Path:
        """Return the report file of a host's worker, on a file system that both machines share."""
        return self.folder / "workers" / f"{mesh}-{rank}.json"

    def secret_file(self, mesh: str, rank: int | str) -> Path:
        """Return the secret file of a host's worker, on a file system that both machines share."""
        return self.folder / "keys" / f"worker-{mesh}-{rank}.json"

    def log_file(self, mesh: str, rank: int | str) -> Path:
        """Return the output file of a host's worker, on a file system that both machines share."""
        return self.folder / "logs" / f"{mesh}-{rank}.log"

    def worker(
        self,
        mesh: str,
        rank: int | str,
        *,
        python: str | None = None,
        listen: str = "tcp://*:0",
        advertise: str | None = None,
        report: str | None = "",
        secret: str = "",
        epoch: str | None = None,
    ) -> WorkerCommand:
        """Return the command that starts the worker of one host.

        Args:
            mesh: The name of the mesh.
            rank: The rank of the host in the mesh. With `env:SLURM_PROCID`, one command starts all
                hosts of the mesh: each worker reads its rank from that variable, and substitutes it
                for `{rank}` in its file names.
            python: The Python interpreter on the host. Defaults to this program's.
            listen: The address to listen on. With port 0, the system chooses a port.
            advertise: The name or address under which others reach the machine; `env:NAME` reads it
                from the environment. By default, the worker determines it.
            report: The file for the report. Defaults to `report_file` of this request; None for a
                worker that only prints its report.
            secret: The file that contains the secret, or `-` for the standard input. Defaults to
                `secret_file` of this request.
            epoch: The number of earlier workers of this rank; `env:NAME` reads it from the
                environment of the host.
        """
        self.spec.mesh(mesh)
        is_one = isinstance(rank, int)
        slot = rank if is_one else "{rank}"
        report_file = str(self.report_file(mesh, slot)) if report == "" else report
        secret_file = secret or str(self.secret_file(mesh, slot))
        argv = [python or sys.executable, "-m", "mesh_jobs.worker", "--allocation-id", self.id]
        argv += ["--mesh", mesh, "--rank", str(rank), "--listen", listen]
        argv += ["--ttl", f"{self.spec.ttl_s:g}", "--secret", secret_file]
        if advertise is not None:
            argv += ["--advertise", advertise]
        if epoch is not None:
            argv += ["--epoch", epoch]
        if report_file is not None:
            argv += ["--report", report_file]
        env = {"MESH_JOB": self.spec.name, "MESH_JOB_ALLOCATION_ID": self.id}

        def issue() -> bytes:
            return self._secret(f"{mesh}-{rank if is_one else 'any'}")

        return WorkerCommand(mesh, rank, tuple(argv), env, report_file, secret_file, issue)

    def controller_files(self) -> dict[str, str]:
        """Return the files of the job's own credentials, for a client script on another machine.

        They grant more rights than a worker's credentials, so they must be kept at least as secret.
        """
        assert self._credentials is not None, "a plan has none"
        return self._files_of(self._credentials)

    def _secret(self, name: str) -> bytes:
        if self._credentials is None:
            return b""  # A plan starts no workers, so no credentials are issued.
        issued = self._credentials.issue(role="worker", name=name)
        return json.dumps(self._files_of(issued)).encode()

    def _files_of(self, credentials: Credentials) -> dict[str, str]:
        keys = self.folder / "keys"
        with tempfile.TemporaryDirectory(prefix=".issue-", dir=keys) as made:
            folder = os.path.join(made, "saved")
            credentials.save(folder)
            return {one.name: one.read_text() for one in Path(folder).iterdir()}
