"""The command `mesh case fetch`, which copies cases from the hosts of a job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mesh_core import MeshError
from mesh_jobs._case_files.case_files import CaseFiles
from mesh_jobs._case_files.copy import copy_case, is_here
from mesh_jobs._cli.host_selection import attached
from mesh_jobs._cli.options import Context, Json, Timeout
from mesh_jobs._cli.output import print_json
from mesh_jobs._errors import JobError
from mesh_jobs._job.lookup import job_load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import HostMesh
    from mesh_jobs._job.job import Job

__all__ = ["fetch"]

_FOLDER = "mesh-cases"
_PIECE_LEN = 8 << 20


def fetch(
    folder: Annotated[
        str | None,
        typer.Argument(
            metavar="[FOLDER]",
            help="The record_dir of the program, as a path on the hosts; by default mesh-cases in "
            "the working directory of the job's client script.",
        ),
    ] = None,
    to: Annotated[Path, typer.Option("--to", help="Folder for the copies.")] = Path(_FOLDER),
    timeout: Timeout = None,
    context: Context = None,
    is_json: Json = False,
) -> None:
    """Copy the cases that programs have saved on the hosts of a job to this machine."""
    job = job_load(context)
    there = _folder_there(job, folder)
    copied: list[str] = []
    failed: dict[str, str] = {}
    with attached(job, timeout, is_quiet=is_json) as state:
        for mesh in state:
            _fetch_from(state[mesh], mesh, there, to, copied, failed)
    if is_json:
        print_json({"copied": copied, "failed": failed})
    else:
        sys.stdout.write("".join(f"{path}\n" for path in copied))
        for where, why in failed.items():
            sys.stderr.write(f"mesh: cannot copy the cases of {where}: {why}\n")
        if not copied and not failed:
            sys.stderr.write(f"mesh: the hosts have no new cases in {there}\n")
    if failed:
        raise typer.Exit(1)


def _folder_there(job: Job, folder: str | None) -> str:
    client = job.spec.client
    if client is not None:
        return str(Path(client.workdir, folder or _FOLDER))
    if folder is None or not Path(folder).is_absolute():
        raise JobError(
            "the job has no client script: a program saves its cases on its own machine; to copy "
            "cases from the hosts, pass the absolute path of their folder"
        )
    return folder


def _fetch_from(
    hosts: HostMesh,
    mesh: str,
    folder: str,
    to: Path,
    copied: list[str],
    failed: dict[str, str],
) -> None:
    """Copy the cases of each host of a mesh; hosts that share a folder have the same ones."""
    files = hosts.spawn_procs(name="cases").spawn("cases", CaseFiles, folder)
    flat = files.flatten("host")
    for rank in range(len(flat)):
        one = flat.slice(host=rank)
        try:
            for name, length in one.list_cases.call_one().get():
                if not is_here(to, name, length):
                    copied.append(str(copy_case(to, name, _pieces(one, name, length))))
        except (MeshError, OSError) as error:
            failed[f"{mesh} hosts={rank}"] = str(error).partition("\n")[0]


def _pieces(files: CaseFiles, name: str, length: int) -> Iterator[bytes]:
    """Yield the content of a case on a host."""
    for start in range(0, length, _PIECE_LEN):
        yield files.read.call_one(name, start, _PIECE_LEN).get()
