"""A retained template: a copy of a template that outlives the job and serves the next one.

The imports of its processes take most of the time in which a program starts. A template that has
imported packages leaves a fork of itself with the worker. This retained template holds installed
modules, but no other state of the program. The supervisor of a later job is forked from it if the
processes of that job need these modules in the same execution environment. Any further modules are
imported as usual.

A retained template is a leaf of the process tree of a job that ends. The supervisor of that job
does not kill it. From then on it is bound to the worker alone and exits when the other end of its
socket is closed.
"""

import array
import contextlib
import gc
import os
import pickle
import signal
import socket
from collections.abc import Callable, Mapping
from typing import NoReturn

from mesh_core._processes.link import close_all
from mesh_core._processes.messages import SUPERVISOR_REQUEST_LEN_MAX, SupervisorRequest, World
from mesh_core._system import kernel as _kernel

__all__ = ["send_to_cache", "serve_retained", "version"]

_FDS_MAX = 3


def send_to_cache(cache_inlet: int, far_socket: socket.socket) -> None:
    """Send the socket of a retained template to the cache of the worker."""
    with socket.socket(fileno=os.dup(cache_inlet)) as inlet, contextlib.suppress(OSError):
        # The worker is gone, or its cache is full; in both cases it never uses this template.
        socket.send_fds(inlet, [b"s"], [far_socket.fileno()])


def serve_retained(
    own_socket: socket.socket,
    world: World,
    modules: frozenset[str],
    sources: Mapping[str, tuple[int, int]],
    start: Callable[[int, SupervisorRequest], None],
) -> NoReturn:
    """Serve as a retained template; runs in a fresh fork of a template.

    Args:
        own_socket: This end of the template's socket.
        world: The execution environment during the imports.
        modules: The imported modules.
        sources: The imported files and their versions.
        start: Runs a supervisor in a fork of this process; see `supervisor_start.run_supervisor`.
    """
    try:
        # Supervisors collect garbage, but must not traverse the objects held here, which are
        # permanent.
        gc.freeze()
        os.setsid()
        _kernel.set_title("mesh-retained")
        # Forks of this process are not waited for.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        _close_inherited(own_socket.fileno())
        while (request := _next(own_socket)) is not None:
            wanted, fds = request
            is_fit = wanted.world.key == world.key and modules <= wanted.modules
            if is_fit and all(version(path) == known for path, known in sources.items()):
                _fork_supervisor(own_socket, wanted, fds, start)
            close_all(fds)
    finally:
        os._exit(0)


def version(path: str) -> tuple[int, int]:
    """Return a value that changes with the content of a file."""
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


def _close_inherited(kept: int) -> None:
    """Close everything that belongs to the template, above all its log."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    _kernel.close_all_but([kept])


def _next(own_socket: socket.socket) -> tuple[SupervisorRequest, list[int]] | None:
    """Wait for a request for a supervisor; return None when the socket is closed."""
    try:
        message, ancillary, _, _ = own_socket.recvmsg(
            SUPERVISOR_REQUEST_LEN_MAX, socket.CMSG_SPACE(4 * _FDS_MAX), socket.MSG_CMSG_CLOEXEC
        )
    except OSError:
        return None
    if not message:
        return None
    fds = array.array("i")
    for _, _, content in ancillary:
        fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return pickle.loads(message), list(fds)


def _fork_supervisor(
    own_socket: socket.socket,
    wanted: SupervisorRequest,
    fds: list[int],
    start: Callable[[int, SupervisorRequest], None],
) -> None:
    """Fork the supervisor."""
    link, log, answer = fds
    try:
        if _kernel.fork() != 0:
            return
    except OSError:
        return
    try:
        own_socket.close()
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.write(answer, str(os.getpid()).encode())
        close_all((log, answer))
        start(link, wanted)
    finally:
        os._exit(1)
