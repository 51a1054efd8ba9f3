"""The file commands of `mesh`: mount, umount, mounts and sync."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Protocol

# typer is a dependency of mesh-jobs, which loads this module for its command.
import typer

from mesh_core import MeshError
from mesh_fs._errors import MountError
from mesh_fs._mount.progress import TransferProgress, progress_reporter
from mesh_fs._options import SnapshotOptions
from mesh_fs._workspace.workspace import sync_workspace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from mesh_core import HostMesh

__all__ = ["mount", "mounts", "sync", "umount"]

_KIND = "mount"
_POLL_INTERVAL_S = 0.2

Context = Annotated[
    str | None, typer.Option("--context", "-c", help="Context of the job, if there are several.")
]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="PATTERN", help="Leave out files, as in a .gitignore."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Meshes = Annotated[
    list[str] | None, typer.Option("--mesh", "-m", help="Mesh of the job; all meshes by default.")
]


class _CommandContext(Protocol):
    """The interface that mesh-jobs passes to commands: `mesh_jobs.spi.CommandContext`."""

    def attached(
        self, context: str | None, mesh: str | None, timeout: float | None
    ) -> AbstractContextManager[Mapping[str, HostMesh]]: ...

    def hold(
        self, context: str | None, kind: str, name: str, fields: Mapping[str, Any]
    ) -> Mapping[str, Any]: ...

    def held(self, context: str | None, kind: str) -> Sequence[Mapping[str, Any]]: ...

    def release(self, context: str | None, kind: str, name: str) -> None: ...

    def print_json(self, value: Any) -> None: ...

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None: ...


def mount(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(help="Local directory.")],
    mntpoint: Annotated[
        str | None,
        typer.Argument(help="Path on the hosts; the same path by default.", show_default=False),
    ] = None,
    meshes: Meshes = None,
    is_watched: Annotated[
        bool, typer.Option("--watch", help="Show changes as they are made.")
    ] = False,
    backend: Annotated[
        str, typer.Option(help="Method of mounting; see the guide to files.")
    ] = "auto",
    ignore: Ignore = None,
    is_for_others: Annotated[
        bool, typer.Option("--allow-other", help="Let other users of the hosts read it.")
    ] = False,
    is_waiting: Annotated[
        bool, typer.Option("--wait", help="Wait until all files are on the hosts.")
    ] = False,
    context: Context = None,
    is_json: Json = False,
) -> None:
    """Mount a directory on the hosts of a job, until umount or the end of the job.

    Mounting the same directory again shows what has changed.
    """
    command: _CommandContext = ctx.obj
    path = os.path.abspath(source)
    there = path if mntpoint is None else mntpoint
    fields = {
        "source": path,
        "mntpoint": there,
        "meshes": meshes or None,
        "backend": backend,
        "watch": is_watched,
        "ignore": ignore or [],
        "allow_other": is_for_others,
    }
    status = command.hold(context, _KIND, there, fields)
    if is_waiting:
        status = _waited(command, context, there, is_quiet=is_json)
    if is_json:
        command.print_json(status)
    else:
        _print_mounts(command, [status])


def umount(
    ctx: typer.Context,
    mntpoint: Annotated[
        str | None, typer.Argument(help="Its path on the hosts.", show_default=False)
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Unmount all mounts.")] = False,
    context: Context = None,
    is_json: Json = False,
) -> None:
    """Unmount a directory that mount has mounted on the hosts."""
    if (mntpoint is None) == (not is_all):
        raise MountError("give either a mountpoint or --all")
    command: _CommandContext = ctx.obj
    if is_all:
        names = [str(one["name"]) for one in command.held(context, _KIND)]
    else:
        # `mount` uses the absolute path as the name if no mountpoint is given.
        names = [os.path.abspath(str(mntpoint))]
    for name in names:
        command.release(context, _KIND, name)
    if is_json:
        command.print_json({"unmounted": names})


def mounts(ctx: typer.Context, context: Context = None, is_json: Json = False) -> None:
    """List the mounts on the hosts of a job, and how much of each has arrived."""
    command: _CommandContext = ctx.obj
    found = command.held(context, _KIND)
    if is_json:
        command.print_json(list(found))
    else:
        _print_mounts(command, found)


def sync(
    ctx: typer.Context,
    workspace: Annotated[str, typer.Argument(help="Local directory.")],
    remote: Annotated[
        str | None,
        typer.Argument(
            metavar="[TO]",
            help="Path on the hosts; by default $WORKSPACE_DIR there, or the same path.",
            show_default=False,
        ),
    ] = None,
    meshes: Meshes = None,
    ignore: Ignore = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", "-t", help="Wait this many seconds for hosts.")
    ] = None,
    context: Context = None,
    is_json: Json = False,
) -> None:
    """Copy a directory into a directory of each host; other files there are kept."""
    command: _CommandContext = ctx.obj
    snapshot = SnapshotOptions(ignore=tuple(ignore or ()))
    rows: list[dict[str, Any]] = []
    with command.attached(context, None, timeout) as found:
        unknown = [name for name in meshes or () if name not in found]
        if unknown:
            raise MountError(f"the job has no mesh {unknown[0]!r}: it has {', '.join(found)}")
        for name in meshes or found:
            with sync_workspace(found[name], workspace, remote, snapshot=snapshot) as written:
                rows += [
                    {"mesh": name, "rank": rank, **_synced(one)}
                    for rank, one in enumerate(written.result.hosts.values())
                ]
    if is_json:
        command.print_json(rows)
    else:
        columns = ("mesh", "rank", "directory", "written", "removed", "overwritten", "error")
        command.print_table(
            [column.upper() for column in columns],
            ([str(row.get(column, "-")) for column in columns] for row in rows),
        )
    if any("error" in row for row in rows):
        raise typer.Exit(1)


def _synced(host: Any) -> dict[str, Any]:
    if isinstance(host, MeshError):
        return {"error": str(host).partition("\n")[0]}
    return {
        "directory": host.directory,
        "written": host.written,
        "removed": host.removed,
        "overwritten": host.overwritten,
        "written_bytes": host.written_bytes,
    }


def _waited(
    command: _CommandContext, context: str | None, name: str, *, is_quiet: bool
) -> Mapping[str, Any]:
    """Wait until all reachable hosts have all available files."""
    with progress_reporter(False if is_quiet else None) as report:
        while True:
            status = _found(command, context, name)
            hosts = [one for one in status.get("hosts", ()) if "error" not in one]
            if report is not None:
                report(_progress_of(hosts))
            if all(one["is_complete"] or one["problem"] for one in hosts):
                return status
            time.sleep(_POLL_INTERVAL_S)


def _found(command: _CommandContext, context: str | None, name: str) -> Mapping[str, Any]:
    for one in command.held(context, _KIND):
        if one["name"] == name:
            return one
    raise MountError(f"{name!r} was unmounted by another command: mount it again")


def _progress_of(hosts: Sequence[Mapping[str, Any]]) -> TransferProgress:
    return TransferProgress(
        hosts=len(hosts),
        whole_hosts=sum(bool(one["is_complete"]) for one in hosts),
        files=max((one["files"] for one in hosts), default=0),
        total_bytes=sum(one["total_bytes"] for one in hosts),
        here_bytes=sum(one["here_bytes"] for one in hosts),
    )


def _print_mounts(command: _CommandContext, found: Sequence[Mapping[str, Any]]) -> None:
    if not found:
        sys.stdout.write("nothing is mounted by mesh mount\n")
        return
    columns = ("SOURCE", "MOUNTPOINT", "WAY", "HOSTS", "FILES", "HERE", "STATE")
    command.print_table(columns, (_row(one) for one in found))


def _row(status: Mapping[str, Any]) -> tuple[str, ...]:
    statuses = status.get("hosts", ())
    hosts = [one for one in statuses if "error" not in one]
    open_ = [one for one in hosts if one["is_open"]]
    arrived = _progress_of(hosts)
    backends = ", ".join(sorted({one["backend"] for one in open_})) or "-"
    here = 100 if not arrived.total_bytes else 100 * arrived.here_bytes // arrived.total_bytes
    return (
        str(status.get("source", "-")),
        str(status["name"]),
        backends,
        f"{len(open_)} of {len(statuses)}",
        str(arrived.files),
        f"{here} %",
        _state(status, hosts),
    )


def _state(status: Mapping[str, Any], hosts: Sequence[Mapping[str, Any]]) -> str:
    """Return a short description of the state of a mount; the most severe problem first."""
    problems = [status.get("problem"), *(one["problem"] for one in hosts)]
    if problem := next((one for one in problems if one), None):
        return str(problem)
    if lost := len(status["hosts"]) - len(hosts):
        return f"{lost} lost"
    if not all(one["is_open"] for one in hosts):
        return "unmounted by others"
    return "complete" if all(one["is_complete"] for one in hosts) else "fetching"
