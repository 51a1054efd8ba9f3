"""The program as the root of everything: how it starts Mesh, and how both end.

Whatever a program leaves behind when it ends is stopped in good order, or, where it is killed, by
the warden that is the parent of its processes.
"""

from __future__ import annotations

import atexit
import os
import secrets
import signal
import socket
import sys
import threading
import time
import traceback

from mesh_core._configuration.config import effective
from mesh_core._hosts.epoch import EPOCH_SHIFT
from mesh_core._program import runtime as current
from mesh_core._program.job_dir import JobDir
from mesh_core._program.runtime import Identity, Runtime, adopt
from mesh_core._supervision.policy import call_hook

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from mesh_core._supervision.policy import MeshFailure

__all__ = [
    "UnhandledFailure",
    "is_exiting",
    "shut_down",
    "start_root",
    "unhandled",
]

# Ends the main thread, wherever it is, when nobody has handled a failure. Nothing else sends it.
_FAULT_SIGNAL = signal.SIGRTMAX - 7
# How long endpoints may still run when the program itself has failed.
_HURRY_S = 1.0
# Beyond the graces: what it takes to kill and reap the rest.
_LEAVE_LIMIT_S = 3.0

_hook_lock = threading.Lock()
_end_lock = threading.Lock()
# The exit status that a failure has decided on; also once the main thread is on its way out.
_status = 0
_exit_begun = threading.Event()
# Numbers that a job of this program has used are not used by the next.
_first_slot = 1
_boot_count = 0


class UnhandledFailure(SystemExit):
    """A failure that nobody handled ends the program; its report has been printed."""


def start_root(job: bytes | None = None, token: bytes | None = None, generation: int = 0) -> None:
    """Makes this process the root of a job.

    Args:
        job: The job that it takes over; a new one when left out.
        token: Proof of belonging to that.
        generation: How many programs have run it before.
    """
    global _boot_count
    identity = Identity(
        host=0,
        host_name=socket.gethostname(),
        slot=0,
        incarnation=generation << EPOCH_SHIFT,
        job=job or secrets.token_bytes(16),
        token=token or secrets.token_bytes(32),
        directory=JobDir.new_path(),
    )
    runtime = Runtime(identity)
    runtime.engine.skip_ports(_boot_count)
    adopt(runtime)
    from mesh_core._hosts.agent import HostAgent

    # Slots have the generation in the same bits: none is one of the program before.
    runtime.host_agent = HostAgent(runtime, max(_first_slot, identity.incarnation + 1))
    runtime.start_agent()
    if _boot_count == 0:
        atexit.register(_at_exit, os.getpid())
    _boot_count += 1
    _listen_for_faults()


def _at_exit(pid: int) -> None:
    """Stops what the program has left; where a failure was left too, the exit status says so."""
    if os.getpid() != pid:
        return
    _exit_begun.set()
    if current.is_running():
        config = effective()
        if _has_failed():
            current.runtime().ownership.hurry_s = _HURRY_S
            shut_down(min(config.failure_exit_grace_s, config.stop_grace_s), is_failed=True)
        else:
            shut_down(config.stop_grace_s + config.cleanup_timeout_s)
    if _status:
        atexit.unregister(_at_exit)
        atexit._run_exitfuncs()
        _leave(_status)


def _has_failed() -> bool:
    """Whether an exception ends the program."""
    return bool(_status) or (hasattr(sys, "last_type") and not _is_interactive())


def shut_down(limit_s: float, *, is_failed: bool = False) -> None:
    """Stops all that the program owns, children first, and ends the job.

    Args:
        limit_s: How long it may take before what is left is killed.
        is_failed: Drop what is queued: nobody wants it any more.
    """
    global _first_slot
    with _end_lock:
        if not current.is_running():
            return
        runtime = current.runtime()
        until = time.monotonic() + limit_s
        worker = threading.Thread(
            target=_end_all, args=(runtime, is_failed), name="mesh-end", daemon=True
        )
        worker.start()
        try:
            worker.join(limit_s)
        finally:
            # Also when an impatient user has interrupted the wait.
            host_agent = runtime.host_agent
            assert host_agent is not None
            left_s = max(until - time.monotonic(), 0.0)
            host_agent.close(0.0 if worker.is_alive() else min(left_s, _HURRY_S))
            _first_slot = host_agent.next_slot
            runtime.is_over = True
            runtime.engine.close()
            adopt(None)


def _end_all(runtime: Runtime, is_failed: bool) -> None:
    runtime.ownership.end_owner(0, is_failed)
    # What they ran has ended: they are free for the next job.
    runtime.dismiss_all()
    runtime.places.spares.release()
    for cell in reversed(list(runtime.actors.values())):
        # Actors of this process that others have spawned here.
        cell.halt()
        cell.ending.is_over.wait()


def _listen_for_faults() -> None:
    """Makes it possible to end the main thread from another one, even in the middle of a sleep.

    Python runs signal handlers in the main thread, and only that can set them. Where Mesh was
    started by another thread, Ctrl-C is what we have.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(_FAULT_SIGNAL, _on_fault)


def _on_fault(_number: int, _frame: FrameType | None) -> None:
    if _status and not _exit_begun.is_set():
        raise UnhandledFailure(_status)


def unhandled(failure: MeshFailure) -> None:
    """Tells the program of a failure that nobody took, which by default ends it."""
    with _hook_lock:
        if _status:
            # The program is ending of another one; the first is the one to read.
            return
        try:
            call_hook(failure)
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:
            traceback.print_exc()
            status = 1
        else:
            return
        if not _is_interactive():
            _end_program(status)


def is_exiting() -> bool:
    """Says whether the main thread has ended and the program is being taken down."""
    return _exit_begun.is_set()


def _is_interactive() -> bool:
    """Whether a person sits at a prompt, who has read the report and wants to go on."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def _end_program(status: int) -> None:
    """Has the main thread unwind and leave; ends the process when that takes too long."""
    global _status
    _status = status
    if _exit_begun.is_set():
        return None
    if not current.runtime().is_root:
        # In a process of a mesh: a thread of the user's own has spawned something here.
        from mesh_core._processes.launch import leave

        return leave(status)
    main = threading.main_thread()
    number = _number_to_send()
    if number is not None and main.is_alive() and main.ident is not None:
        limit_s = effective().failure_exit_grace_s
        signal.pthread_kill(main.ident, number)
        if _exit_begun.wait(limit_s):
            # This thread goes down with the process, at the latest when cleaning up takes too long.
            time.sleep(limit_s + _LEAVE_LIMIT_S)
    if current.is_running():
        host_agent = current.runtime().host_agent
        if host_agent is not None:
            host_agent.close(0.0)
    return _leave(status)


def _number_to_send() -> signal.Signals | int | None:
    """Gives the signal that makes the main thread raise."""
    if signal.getsignal(_FAULT_SIGNAL) is _on_fault:
        return _FAULT_SIGNAL
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return signal.SIGINT
    return None


def _leave(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            # Nobody reads any more, or the user has closed it.
            continue
    os._exit(status)


def _after_fork() -> None:
    """A fork of the program that starts Mesh is a program of its own."""
    global _hook_lock, _end_lock, _exit_begun, _boot_count, _status
    _hook_lock = threading.Lock()
    _end_lock = threading.Lock()
    _exit_begun = threading.Event()
    _boot_count = _status = 0


os.register_at_fork(after_in_child=_after_fork)
