"""What a backend is asked to run: the job's spec, and the command of each worker."""

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

__all__ = ["Order", "WorkerCommand"]


@dataclass(frozen=True)
class WorkerCommand:
    """How the worker of one host is started, wherever that is.

    Attributes:
        mesh: The mesh of the host.
        rank: Its place there; `env:NAME` where the worker is to read it from its environment.
        argv: The command.
        env: What to add to its environment; nothing in it is secret.
        report_file: Where the worker writes its report; None when it only prints it.
        secret_file: From where the worker reads its secret; `-` is its standard input.
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
        """What the worker proves itself with: to go only where nobody else reads.

        A private file, the standard input of `ssh`, a Secret of Kubernetes. It is made anew each
        time, and each is as good as the other.
        """
        return self._issue()

    def save_secret(self) -> None:
        """Writes the secret into `secret_file`, for its owner alone.

        Raises:
            OSError: The system refuses.
        """
        write_private(Path(self.secret_file), self.secret)


@dataclass(frozen=True)
class Order:
    """A job as its backend gets it.

    Attributes:
        id: Unique; the same again when the program died before it had its ticket.
        spec: What is asked for.
        folder: The job's own folder, on the machine of the program: with `workers/` for reports,
            `keys/` for secrets and `logs/`, all private and removed with the job.
    """

    id: str
    spec: JobSpec
    folder: Path
    _credentials: Credentials | None = field(default=None, repr=False, compare=False)

    def hosts(self) -> Iterator[tuple[str, int]]:
        """Gives mesh and rank of each host that is asked for."""
        for mesh in self.spec.meshes:
            for rank in range(mesh.hosts):
                yield mesh.name, rank

    def report_file(self, mesh: str, rank: int | str) -> Path:
        """Where the worker of a host reports, on a filesystem that both see."""
        return self.folder / "workers" / f"{mesh}-{rank}.json"

    def secret_file(self, mesh: str, rank: int | str) -> Path:
        """Where the secret of a host's worker is, on a filesystem that both see."""
        return self.folder / "keys" / f"worker-{mesh}-{rank}.json"

    def log_file(self, mesh: str, rank: int | str) -> Path:
        """Where the output of a host's worker goes, on a filesystem that both see."""
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
        """Gives the command that serves one host.

        Args:
            mesh: The mesh.
            rank: The host's place there. `env:SLURM_PROCID` makes one command for all hosts of
                the mesh: each worker reads its rank from that variable, and puts it in place of
                `{rank}` in its files.
            python: The Python there; the one of this program when left out.
            listen: Where to listen. Port 0 lets the system choose.
            advertise: The name or address that others reach the machine at; `env:NAME` reads it
                from the environment. When left out the worker finds out by itself.
            report: The file to report to; `report_file` of this order when left out, and None for
                a worker that only prints its report.
            secret: The file to read the secret from, `-` for the standard input; `secret_file` of
                this order when left out.
            epoch: How many workers have had this place before; `env:NAME` reads it there.
        """
        self.spec.mesh(mesh)
        is_one = isinstance(rank, int)
        slot = rank if is_one else "{rank}"
        report_file = str(self.report_file(mesh, slot)) if report == "" else report
        secret_file = secret or str(self.secret_file(mesh, slot))
        argv = [python or sys.executable, "-m", "mesh_jobs.worker", "--order", self.id]
        argv += ["--mesh", mesh, "--rank", str(rank), "--listen", listen]
        argv += ["--ttl", f"{self.spec.ttl_s:g}", "--secret", secret_file]
        if advertise is not None:
            argv += ["--advertise", advertise]
        if epoch is not None:
            argv += ["--epoch", epoch]
        if report_file is not None:
            argv += ["--report", report_file]
        env = {"MESH_JOB": self.spec.name, "MESH_JOB_ORDER": self.id}

        def issue() -> bytes:
            return self._secret(f"{mesh}-{rank if is_one else 'any'}")

        return WorkerCommand(mesh, rank, tuple(argv), env, report_file, secret_file, issue)

    def controller_files(self) -> dict[str, str]:
        """Gives the files of the job's own credentials, for a client script on another machine.

        As secret as those of a worker, and more.
        """
        assert self._credentials is not None, "a plan has none"
        return self._files_of(self._credentials)

    def _secret(self, name: str) -> bytes:
        if self._credentials is None:
            return b""  # A plan: nothing is run, so nothing is issued.
        issued = self._credentials.issue(role="worker", name=name)
        return json.dumps(self._files_of(issued)).encode()

    def _files_of(self, credentials: Credentials) -> dict[str, str]:
        keys = self.folder / "keys"
        with tempfile.TemporaryDirectory(prefix=".issue-", dir=keys) as made:
            folder = os.path.join(made, "saved")
            credentials.save(folder)
            return {one.name: one.read_text() for one in Path(folder).iterdir()}
