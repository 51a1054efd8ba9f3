"""The program as the root of a job: how it starts Mesh, and how both end.

When a program ends, everything that it started is stopped in an orderly way. If it is killed, the
process supervisor, which is the parent of its processes, kills them.
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

from mesh_core._configuration.config import effective
from mesh_core._hosts.agent import HostAgent
from mesh_core._processes.job_dir import JobDir
from mesh_core._program.assembly import assemble
from mesh_core._program.recording import accept_save_requests
from mesh_core._runtime import runtime as current
from mesh_core._runtime.epoch import EPOCH_SHIFT
from mesh_core._runtime.identity import Identity
from mesh_core._runtime.runtime import adopt
from mesh_core._supervision.lifecycle import Lifecycle, is_interactive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from mesh_core._runtime.runtime import Runtime

__all__ = ["UnhandledFailure", "end_all", "start_root"]

# Ends the main thread, whatever it does, after an unhandled failure. No other code sends this
# signal.
_FAULT_SIGNAL = signal.SIGRTMAX - 7
# How long endpoints may still run after the program itself has failed.
_STOP_GRACE_MAX_S = 1.0
# The time to save the cases of recorded actors, while their hosts are still available.
_CASES_LIMIT_S = 10.0
# The time beyond the grace periods to kill and reap the rest.
_LEAVE_LIMIT_S = 3.0


class UnhandledFailure(SystemExit):
    """A failure that was not handled ends the program; its report has been printed."""


class Program(Lifecycle):
    """This process as a program, which runs one job after another."""

    def __init__(self) -> None:
        super().__init__()
        self._end_lock = threading.Lock()
        self._exit_begun = threading.Event()
        # Slots of one job of this program are not reused by the next one.
        self._first_slot = 1
        self._job_count = 0

    def start(self, job: bytes | None, token: bytes | None, generation: int) -> None:
        """Make this process the root of a job; see `start_root`."""
        identity = Identity(
            host=0,
            host_name=socket.gethostname(),
            slot=0,
            incarnation=generation << EPOCH_SHIFT,
            job=job or secrets.token_bytes(16),
            token=token or secrets.token_bytes(32),
            directory=JobDir.new_path(),
        )
        runtime = assemble(identity, self)
        runtime.engine.skip_ports(self._job_count)
        # Slots contain the generation in the same bits, so they differ from the slots of the
        # previous program.
        runtime.host_agent = HostAgent(runtime, max(self._first_slot, identity.incarnation + 1))
        runtime.start_agent()
        if effective().record is not None:
            accept_save_requests(runtime)
        if self._job_count == 0:
            atexit.register(self._at_exit, os.getpid())
        self._job_count += 1
        _handle_faults()

    @property
    def is_exiting(self) -> bool:
        """Whether the main thread has ended and the program is shutting down."""
        return self._exit_begun.is_set()

    def shut_down(self, limit_s: float, *, is_failed: bool = False) -> None:
        """Stop everything that the program owns, children first, and end the job.

        Args:
            limit_s: Seconds until everything that is left is killed.
            is_failed: Whether to drop queued messages, because the program has failed.
        """
        with self._end_lock:
            if not current.is_running():
                return
            runtime = current.runtime()
            if runtime.save_requests is not None:
                runtime.save_requests.close()
            if effective().record is not None:
                _save_cases(runtime, min(limit_s, _CASES_LIMIT_S))
            until = time.monotonic() + limit_s
            worker = threading.Thread(
                target=end_all, args=(runtime, is_failed), name="mesh-end", daemon=True
            )
            worker.start()
            try:
                worker.join(limit_s)
            finally:
                # Runs also if the user interrupts the wait.
                host_agent = runtime.host_agent
                assert host_agent is not None
                left_s = max(until - time.monotonic(), 0.0)
                host_agent.close(0.0 if worker.is_alive() else min(left_s, _STOP_GRACE_MAX_S))
                self._first_slot = host_agent.next_slot
                runtime.is_over = True
                runtime.engine.close()
                adopt(None)

    def leave(self, status: int = 0, *, is_at_once: bool = False) -> None:
        """Make the main thread unwind and exit; end the process if this takes too long."""
        if self._exit_begun.is_set():
            return
        main = threading.main_thread()
        number = _number_to_send()
        if number is not None and main.is_alive() and main.ident is not None:
            limit_s = effective().failure_exit_grace_s
            signal.pthread_kill(main.ident, number)
            if self._exit_begun.wait(limit_s):
                # This thread ends with the process, or ends it if the cleanup takes too long.
                time.sleep(limit_s + _LEAVE_LIMIT_S)
        if current.is_running():
            host_agent = current.runtime().host_agent
            if host_agent is not None:
                host_agent.close(0.0)
        _exit(status)

    def _at_exit(self, pid: int) -> None:
        """Stop everything that is left; after a failure, set the exit status accordingly."""
        if os.getpid() != pid:
            return
        self._exit_begun.set()
        if current.is_running():
            config = effective()
            if self._has_failed():
                current.runtime().ownership.stop_grace_max_s = _STOP_GRACE_MAX_S
                limit_s = min(config.failure_exit_grace_s, config.stop_grace_s)
                self.shut_down(limit_s, is_failed=True)
            else:
                self.shut_down(config.stop_grace_s + config.cleanup_timeout_s)
        if self.status:
            atexit.unregister(self._at_exit)
            atexit._run_exitfuncs()
            _exit(self.status)

    def _has_failed(self) -> bool:
        """Return whether an exception ends the program."""
        return bool(self.status) or (hasattr(sys, "last_type") and not is_interactive())


_program = Program()


def start_root(
    job: bytes | None = None, token: bytes | None = None, generation: int = 0
) -> Program:
    """Make this process the root of a job.

    Args:
        job: The job to take over. Default: a new one.
        token: The secret of that job.
        generation: The number of programs that have run the job before.
    """
    _program.start(job, token, generation)
    return _program


def _save_cases(runtime: Runtime, limit_s: float) -> None:
    """Save the cases of recorded actors for the failures that were reported so far."""
    # The agent replies after it has handled the reports that came before.
    runtime.ask_agent(runtime.me, "wake", timeout=limit_s)
    if runtime.case_collector is not None:
        runtime.case_collector.close(limit_s)


def end_all(runtime: Runtime, is_failed: bool) -> None:
    """Stop everything that the program owns, and release its hosts."""
    runtime.ownership.end_owner(0, is_failed)
    # The processes on the workers have ended, so the workers are available for the next job.
    runtime.dismiss_all()
    runtime.places.standby.release()
    for cell in reversed(list(runtime.actors.values())):
        # Actors that others have spawned in this process.
        cell.halt()
        cell.ending.is_over.wait()


def _handle_faults() -> None:
    """Allow another thread to end the main thread, even during a sleep.

    Python runs signal handlers in the main thread, and only that thread can set them. If another
    thread has started Mesh, SIGINT is used instead.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(_FAULT_SIGNAL, _on_fault)


def _on_fault(_number: int, _frame: FrameType | None) -> None:
    if _program.status and not _program.is_exiting:
        raise UnhandledFailure(_program.status)


def _number_to_send() -> signal.Signals | int | None:
    """Return the signal that makes the main thread raise an exception."""
    if signal.getsignal(_FAULT_SIGNAL) is _on_fault:
        return _FAULT_SIGNAL
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return signal.SIGINT
    return None


def _exit(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            # The stream has no reader, or the user has closed it.
            continue
    os._exit(status)


def _after_fork() -> None:
    """Reset the state in a fork of the program, which may start Mesh as a separate program."""
    global _program
    _program = Program()


os.register_at_fork(after_in_child=_after_fork)
