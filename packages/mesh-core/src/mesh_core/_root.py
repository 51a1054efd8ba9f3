"""The program as the root of everything: how it starts Mesh, and how both end.

Whatever a program leaves behind when it ends is stopped in good order, or, where it is killed, by the
warden that is the parent of its processes.
"""

from __future__ import annotations

import atexit
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import traceback
from pathlib import Path

from mesh_core import _runtime as current
from mesh_core._config import effective
from mesh_core._runtime import Identity, Runtime, adopt
from mesh_core._supervision import call_hook

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from mesh_core._supervision import MeshFailure

__all__ = ["shut_down", "start_root", "unhandled"]

_fault = threading.Event()
_previous_handler: Any = None
_hook_lock = threading.Lock()


class UnhandledFailure(SystemExit):
    """A failure that nobody handled ends the program; its report has been printed."""


def start_root() -> None:
    """Makes this process the root of a new job."""
    directory = Path(tempfile.mkdtemp(prefix=f"mesh-{os.getpid()}-"))
    identity = Identity(
        host=0,
        host_name=socket.gethostname(),
        slot=0,
        incarnation=0,
        job=secrets.token_bytes(16),
        token=secrets.token_bytes(32),
        directory=directory,
    )
    runtime = Runtime(identity)
    adopt(runtime)
    from mesh_core._host_agent import HostAgent

    runtime.host_agent = HostAgent(runtime)
    runtime.start_agent()
    atexit.register(_at_exit, os.getpid())
    _listen_for_faults()


def _at_exit(pid: int) -> None:
    if os.getpid() == pid and current.is_running():
        shut_down(effective().stop_grace_s)


def shut_down(grace_s: float) -> None:
    """Stops all that the program owns, children first, and ends the job."""
    if not current.is_running():
        return
    runtime = current.runtime()
    worker = threading.Thread(
        target=runtime.ownership.end_owner, args=(0, False), name="mesh-end", daemon=True
    )
    worker.start()
    worker.join(grace_s)
    host_agent = runtime.host_agent
    assert host_agent is not None
    host_agent.close(0.0 if worker.is_alive() else grace_s)
    runtime.engine.close()
    adopt(None)


def _listen_for_faults() -> None:
    """Makes it possible to end the main thread from another one, even in the middle of a sleep.

    Python runs signal handlers in the main thread, so a fault raises SIGINT there. A handler that
    the user has set stays in charge; then the program is ended from outside after a grace.
    """
    global _previous_handler
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _previous_handler = signal.default_int_handler
        signal.signal(signal.SIGINT, _on_interrupt)


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    if _fault.is_set():
        _fault.clear()
        raise UnhandledFailure(1)
    signal.default_int_handler(number, frame)


def unhandled(failure: MeshFailure) -> None:
    """Tells the program of a failure that nobody took, which by default ends it."""
    with _hook_lock:
        try:
            call_hook(failure)
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:
            traceback.print_exc()
            status = 1
        else:
            return
        if _is_interactive():
            return
        _end_program(status)


def _is_interactive() -> bool:
    """Whether a person sits at a prompt, who has read the report and wants to go on."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def _end_program(status: int) -> None:
    if signal.getsignal(signal.SIGINT) is _on_interrupt and status == 1:
        _fault.set()
        main = threading.main_thread()
        if main.is_alive() and main.ident is not None:
            signal.pthread_kill(main.ident, signal.SIGINT)
            main.join(effective().failure_exit_grace_s)
            if not main.is_alive():
                return
    if current.is_running():
        host_agent = current.runtime().host_agent
        if host_agent is not None:
            host_agent.close(0.0)
    sys.stderr.flush()
    os._exit(status)
