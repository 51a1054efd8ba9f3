"""Recording of actors: the functions of a program, and the start in a process of a mesh."""

from __future__ import annotations

import logging
from functools import partial

from mesh_core._configuration.config import configure, effective
from mesh_core._meshes.actor_mesh import ActorMesh
from mesh_core._recording.errors import NotRecorded
from mesh_core._runtime.runtime import runtime, runtime_if_any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike
    from pathlib import Path
    from typing import Any

    from mesh_core._runtime.runtime import Runtime

__all__ = ["accept_save_requests", "record", "save_case", "start_recording"]

_ROOT = 0


def start_recording(current: Runtime) -> None:
    """Record the actors of this process if the configuration enables it.

    If the log of a process cannot be created or continued, the process logs the reason and
    continues without a recording.
    """
    config = effective()
    if config.record is None:
        return
    # Most programs do not record actors.
    from mesh_core._recording.log import folder_of  # noqa: PLC0415
    from mesh_core._recording.recording import ProcessRecording  # noqa: PLC0415
    from mesh_core._recording.stop import warn_not_recorded, warn_stopped  # noqa: PLC0415

    identity = current.identity

    def on_failure(port: int, number: int, description: str) -> None:
        current.tell_agent(
            _ROOT, "case_wanted", current.me, identity.incarnation, port, number, description
        )

    folder = folder_of(identity.directory, identity.slot, identity.incarnation)
    try:
        current.recording = ProcessRecording(
            current.engine,
            folder,
            config.record_bytes_max,
            config.record,
            on_failure,
            partial(warn_stopped, folder),
            config.record_redact or (),
        )
    except OSError as error:
        warn_not_recorded(folder, error)


def accept_save_requests(current: Runtime) -> None:
    """Let commands save cases of recorded actors of this program, once.

    If this is not possible, the program runs without it.
    """
    if current.save_requests is not None:
        return
    # Most programs do not record actors.
    from mesh_core._recording.save_requests import SaveRequests  # noqa: PLC0415

    try:
        current.save_requests = SaveRequests(current)
    except OSError as error:
        logging.getLogger(__name__).warning("commands cannot save cases of this program: %s", error)


def record(
    meshes: str | Iterable[str] = "*",
    *,
    budget_bytes: int | str | None = None,
    folder: str | PathLike[str] | None = None,
    redact: str | Iterable[str] | None = None,
) -> None:
    """Record the actors of processes that are started from now on.

    Each process keeps the newest entries within its budget. When an actor raises an exception or
    its process dies, a case is saved: one file with which `python -m mesh_core.replay` runs the
    actor again. The same settings can be given as `record`, `record_bytes_max`, `record_dir` and
    `record_redact` of the configuration, for example in the environment as `MESH_RECORD=*`.

    Args:
        meshes: The names of the actor meshes to record, or patterns such as `train*`.
        budget_bytes: Data that each process keeps. Default: 64 MiB.
        folder: The directory for cases. Default: `mesh-cases` in the working directory.
        redact: The names of arguments, keys of dictionaries and environment variables whose values
            are not recorded, or patterns such as `*token*`. Default: none.

    Raises:
        ConfigError: A value is invalid.
    """
    names = (meshes,) if isinstance(meshes, str) else tuple(meshes)
    configure(record=names)
    if budget_bytes is not None:
        configure(record_bytes_max=budget_bytes)
    if folder is not None:
        configure(record_dir=folder)
    if redact is not None:
        configure(record_redact=(redact,) if isinstance(redact, str) else tuple(redact))
    current = runtime_if_any()
    if current is not None and current.is_root:
        accept_save_requests(current)


def save_case(mesh: Any, reason: str = "requested by the program") -> Path:
    """Save a case of an actor that has not failed, with its messages so far.

    Args:
        mesh: A mesh of one actor, such as `workers.slice(gpus=3)`.
        reason: Why the case is saved, in one line.

    Returns:
        The path of the case.

    Raises:
        TypeError: `mesh` is not a mesh of actors.
        ValueError: It has more than one actor.
        RuntimeError: The caller is an actor; only the program saves cases.
        NotRecorded: The actor is not recorded, its recording stopped before it was created, or its
            host is lost.
    """
    if not isinstance(mesh, ActorMesh):
        raise TypeError(f"save_case saves an actor of a mesh, not {mesh!r}")
    if len(mesh) != 1:
        raise ValueError(f"save_case saves one actor, but {mesh!r} has {len(mesh)}: select one")
    # Most programs save no case, and the modules for it take long to import.
    from mesh_core._recording.collector import Failure, case_collector  # noqa: PLC0415

    current = runtime()
    if not current.is_root:
        raise RuntimeError("only the program saves cases: call save_case there")
    failure = Failure(mesh._proc_of(0), 0, mesh._port, 0, reason)
    saved = case_collector(current).save(failure)
    if saved is None:
        raise NotRecorded(
            f"{mesh!r} is not recorded: call mesh_core.recording.record() before its processes are "
            "started"
        )
    return saved
