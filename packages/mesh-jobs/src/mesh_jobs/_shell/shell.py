"""A shell on one host, under a pseudo-terminal there."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from mesh_core import Channel, configured
from mesh_jobs._exec.exec_command import CommandRequest
from mesh_jobs._shell.pty_actor import PtyActor
from mesh_jobs._shell.terminal import on_resize, raw, typed, window_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from mesh_core import HostMesh, Port, PortReceiver
    from mesh_jobs._shell.pty_actor import PtyEvent

__all__ = ["shell"]

# The maximum number of pieces in flight in each direction.
_WINDOW = 32
# End of input, as a terminal in canonical mode encodes it.
_END_OF_INPUT = b"\x04"
_END_PAUSE_S = 0.3
_SHELL = ("/bin/sh", "-c", 'exec "${SHELL:-/bin/sh}" -i')


def shell(
    host_mesh: HostMesh,
    cmd: str | Sequence[str] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    workdir: str | PathLike[str] | None = None,
) -> int:
    """Open a shell on a host, under a pseudo-terminal that is connected to the local terminal.

    All keys are forwarded, including Ctrl-C, and so are changes of the window size. If stdin is not
    a terminal, its content is forwarded as input, followed by end of file.

    Args:
        host_mesh: A mesh of one host.
        cmd: A command to run instead of the user's shell on the host.
        env: Variables to add to the environment of the worker.
        workdir: The working directory of the command. Defaults to the worker's.

    Returns:
        The exit status.

    Raises:
        ValueError: The mesh does not consist of one host.
        MeshError: The host was lost.
    """
    if len(host_mesh) != 1:
        raise ValueError(f"a shell needs a single host, not {len(host_mesh)}: slice the mesh")
    variables = {"TERM": os.environ.get("TERM", "dumb"), **(env or {})}
    request = CommandRequest.of(_SHELL if cmd is None else cmd, variables, workdir)
    with configured(mailbox_len_max=_WINDOW):
        procs = host_mesh.spawn_procs(name="shell")
        port, events = _open_channel()
        remote = procs.spawn("terminal", PtyActor)
    try:
        stdin = sys.stdin.fileno()
        remote.start.call(request, window_size(stdin), port).get()
        with (
            raw(stdin),
            on_resize(lambda: remote.resize.broadcast(window_size(stdin))),
            _Screen(events) as screen,
        ):
            for piece in typed(stdin, screen.is_over):
                remote.write.broadcast(piece)
            # The end of input is repeated, because each process that reads later needs its own.
            while not screen.is_over_within(_END_PAUSE_S):
                remote.write.broadcast(_END_OF_INPUT)
            return screen.outcome()
    finally:
        procs.stop().exception()


def _open_channel() -> tuple[Port[PtyEvent], PortReceiver[PtyEvent]]:
    return Channel.open()


class _Screen:
    """Display that prints the output of the remote terminal, in a separate thread."""

    def __init__(self, events: PortReceiver[PtyEvent]) -> None:
        self._events = events
        self._outcome: int | BaseException = 0
        self.is_over, self._over = os.pipe()
        """A descriptor that becomes readable when the remote side has ended."""
        self._thread = threading.Thread(target=self._show, name="mesh-shell", daemon=True)

    def is_over_within(self, limit_s: float) -> bool:
        """Whether the remote side ends within the time limit."""
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def outcome(self) -> int:
        """Return the exit status, or raise the error."""
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def _show(self) -> None:
        try:
            while isinstance(said := self._events.recv().get(), bytes):
                _write_all(sys.stdout.fileno(), said)
            self._outcome = said
        except BaseException as error:
            self._outcome = error
        finally:
            os.close(self._over)

    def __enter__(self) -> _Screen:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._events.close()
        self._thread.join()
        os.close(self.is_over)


def _write_all(fd: int, shown: bytes) -> None:
    while shown:
        shown = shown[os.write(fd, shown) :]
