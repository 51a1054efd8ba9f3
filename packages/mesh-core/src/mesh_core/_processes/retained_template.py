"""A seed: a copy of a template that outlives the job, for the next job on the same worker.

What costs most when a program starts is to import what its processes need. A template that has
done so leaves a fork of itself with the worker: a seed, which holds installed modules and nothing
else of the program. The warden of a later job is forked from it, if that job's processes want
these modules in the same surroundings; what they want beyond is imported as ever.

A seed is a leaf of the process tree of a job that ends. Its warden spares it, and then it is bound
to the worker alone: it ends when nobody holds the other end of its socket.
"""

import array
import contextlib
import gc
import os
import pickle
import signal
import socket
from collections.abc import Mapping
from typing import NoReturn

from mesh_core._processes import kernel as _kernel
from mesh_core._processes.link import close_all
from mesh_core._processes.messages import SPROUT_LEN_MAX, Sprout, World

__all__ = ["grow", "leave_with", "version"]

_FDS_MAX = 3


def leave_with(bed: int, plant: socket.socket) -> None:
    """Gives the worker at `bed` the socket of a seed."""
    with socket.socket(fileno=os.dup(bed)) as inlet, contextlib.suppress(OSError):
        # The worker is gone, or was left too many: then it will not be asked for this one.
        socket.send_fds(inlet, [b"s"], [plant.fileno()])


def grow(
    seedling: socket.socket,
    world: World,
    modules: frozenset[str],
    sources: Mapping[str, tuple[int, int]],
) -> NoReturn:
    """Becomes a seed; runs in a fresh fork of a template.

    Args:
        seedling: This end of the seed's socket.
        world: What the modules have seen while they were imported.
        modules: What was imported.
        sources: The files that were, and their versions.
    """
    try:
        # Wardens collect garbage: not by looking at what is here, which is for good.
        gc.freeze()
        os.setsid()
        _kernel.set_title("mesh-seed")
        # Forks of it are not waited for.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        _let_go(seedling.fileno())
        while (request := _next(seedling)) is not None:
            wanted, fds = request
            is_fit = wanted.world.key == world.key and modules <= wanted.modules
            if is_fit and all(version(path) == known for path, known in sources.items()):
                _sprout(seedling, wanted, fds)
            close_all(fds)
    finally:
        os._exit(0)


def version(path: str) -> tuple[int, int]:
    """Tells one content of a file from another."""
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


def _let_go(kept: int) -> None:
    """Closes all that is the template's, its log above all."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    _kernel.close_all_but([kept])


def _next(seedling: socket.socket) -> tuple[Sprout, list[int]] | None:
    """Waits for who wants a warden; None when nobody can any more."""
    try:
        message, ancillary, _, _ = seedling.recvmsg(
            SPROUT_LEN_MAX, socket.CMSG_SPACE(4 * _FDS_MAX), socket.MSG_CMSG_CLOEXEC
        )
    except OSError:
        return None
    if not message:
        return None
    fds = array.array("i")
    for _, _, content in ancillary:
        fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return pickle.loads(message), list(fds)


def _sprout(seedling: socket.socket, wanted: Sprout, fds: list[int]) -> None:
    """Forks the warden."""
    link, log, answer = fds
    try:
        if _kernel.fork() != 0:
            return
    except OSError:
        return
    try:
        from mesh_core._processes import spawner_start as _warden_start

        seedling.close()
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.write(answer, str(os.getpid()).encode())
        close_all((log, answer))
        _warden_start.sprout(link, wanted)
    finally:
        os._exit(1)
