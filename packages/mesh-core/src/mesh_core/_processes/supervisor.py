"""The process supervisor of a host, which is the parent of all its processes.

The supervisor is a small single-threaded child process of the controller. It owns the templates
that fork processes, becomes the parent of the forked processes, and reports each exit immediately.
When the controller is gone, for any reason, it kills all processes. It never runs user code,
so user code cannot delay it.
"""

import contextlib
import os
import select
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Sequence

from mesh_core._processes import template as _template
from mesh_core._processes.job_dir import hold
from mesh_core._processes.link import Link
from mesh_core._processes.link_poller import LinkPoller
from mesh_core._processes.memory_deaths import MemoryDeaths
from mesh_core._processes.memory_watch import MemoryWatch
from mesh_core._processes.messages import (
    Continued,
    End,
    Exited,
    Kill,
    MemoryHigh,
    ProcessStart,
    Spawn,
    Started,
    Stopped,
    SupervisorRequest,
)
from mesh_core._processes.stopped_processes import LOOK_S, StoppedProcs, StoppedTemplates
from mesh_core._processes.template_pool import TemplatePool
from mesh_core._system import kernel as _kernel
from mesh_core._system import stdio as _stdio

# The time that the kernel may need to terminate killed processes that hold gigabytes or wait for a
# device.
_REAP_LIMIT_S = 10.0
_LOOK_AGAIN_S = 0.02
# The time that a session leader may take to exit after SIGTERM.
_DAEMON_GRACE_S = 2.0
_NOW_S = 0.001


class _Proc:
    def __init__(self, slot: int, incarnation: int, unresponsive_timeout_s: float) -> None:
        self.slot = slot
        self.incarnation = incarnation
        self.unresponsive_timeout_s = unresponsive_timeout_s
        self.why: str | None = None
        # Whether the controller has requested to kill it.
        self.is_kill_requested = False


class Supervisor:
    """Process supervisor that owns templates and processes and ends them with its owner.

    Args:
        controller: Link to the controller of the host's processes.
        job_dir: The directory to remove at the end.
        launch: The module whose `main` runs a process.
        denied: Names of modules that must never be preloaded.
        owner: The pid of the controller.
        cache_inlet: The descriptor through which templates pass retained copies to the worker's
            template cache; None if no cache exists.
        start_supervisor: Runs a supervisor in a fork of a retained template.
        is_blank: Whether this interpreter holds no user modules.
    """

    def __init__(
        self,
        controller: Link,
        job_dir: str,
        launch: str,
        denied: Sequence[str],
        *,
        owner: int,
        cache_inlet: int | None,
        start_supervisor: Callable[[int, SupervisorRequest], None],
        is_blank: bool = True,
    ) -> None:
        self._controller = controller
        self._owner = owner
        self._job_dir = job_dir
        # Every process of the host is a fork of this one and therefore keeps the lock while it
        # lives. The directory is missing only if the controller is already dead.
        with contextlib.suppress(OSError):
            hold(job_dir)
        self._poller = LinkPoller()
        is_safe = _kernel.settled_thread_count() == 1
        why_unsafe = None if is_safe else _template.why_threads("what site.py finds")
        self._templates = TemplatePool(
            self._poller,
            controller,
            launch,
            denied,
            _template.Source(os.getpid(), why_unsafe, is_blank, start_supervisor, cache_inlet),
            on_started=self._on_started,
            on_broken=self._on_broken,
        )
        self._procs: dict[int, _Proc] = {}
        self._pids: dict[tuple[int, int], int] = {}
        self._force_at: float | None = None
        self._look_at: float | None = None
        self._stopped = StoppedProcs(self._on_stop, self._on_continue, self._kill_stopped)
        self._stopped_templates = StoppedTemplates()
        self._memory_deaths = MemoryDeaths()
        self._memory_watch = MemoryWatch(self._on_memory_high, self._on_memory_exceeded)
        self._wakeup, wakeup_write = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(wakeup_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        self._poller.add(self._wakeup, self._on_child)
        self._poller.add_link(controller, self._on_controller)
        self._watch_controller_life()

    def _watch_controller_life(self) -> None:
        """Watch the controller's pidfd; a fork of it may keep its end of the socket open."""
        try:
            handle = os.pidfd_open(self._owner)
        except OSError:
            return  # The supervisor then detects the controller's exit through the socket alone.
        self._poller.add(handle, lambda: self.end(0.0))

    def run(self) -> None:
        """Serve until the controller requests the end or is gone."""
        try:
            self._serve()
        except Exception:
            traceback.print_exc()  # A bug in Mesh must not prevent the cleanup.
            _stdio.flush()
        self._end_by_force()

    def _serve(self) -> None:
        while (wait_s := self._time_left()) != 0:
            self._poller.poll(wait_s)
            self._look()
            self._memory_watch.look()

    def _look(self) -> None:
        """Kill processes that have been stopped for too long, if a check is due."""
        now = time.monotonic()
        if self._is_quiet():
            self._look_at = None
            self._stopped_templates.rest()
        elif self._look_at is None:
            self._look_at = now + LOOK_S
        elif now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look_at_stopped()

    def _is_quiet(self) -> bool:
        return self._stopped.is_empty and not self._templates.has_batches

    def _look_at_stopped(self) -> None:
        self._stopped.look()
        if self._templates.has_batches:
            self._stopped_templates.look(self._procs.keys() | self._templates.retained_pids)
        else:
            self._stopped_templates.rest()

    def _time_left(self) -> float | None:
        """Return the seconds to wait for events; 0 means that it is time to kill the rest."""
        if self._force_at is None:
            times = [at for at in (self._look_at, self._memory_watch.look_at) if at is not None]
            # 0 would end everything.
            return max(_NOW_S, min(times) - time.monotonic()) if times else None
        return max(0.0, self._force_at - time.monotonic()) if self._procs else 0.0

    # Requests from the controller.

    def _on_controller(self) -> None:
        try:
            messages = self._controller.receive()
        except EOFError:
            self.end(0.0)
            return
        for message, fds in messages:
            match message:
                case Spawn():
                    self._templates.start(message, fds)
                case Kill():
                    self._kill(message)
                case End():
                    self.end(message.grace_s)
                case _:
                    raise AssertionError(f"unknown request {message!r}")

    def _tell(self, message: object) -> None:
        self._poller.send(self._controller, message)

    def _kill(self, request: Kill) -> None:
        proc = (request.slot, request.incarnation)
        pid = self._pids.get(proc)
        if pid is not None:
            # The process is not reaped yet, because reaping removes the entry. Its pid cannot have
            # been reused.
            self._procs[pid].is_kill_requested |= request.signal == signal.SIGKILL
            _kernel.kill_quietly(pid, request.signal)
        elif request.signal == signal.SIGKILL:
            self._templates.kill(proc)

    # Starts.

    def _on_started(self, report: Started, process: ProcessStart) -> None:
        proc = (report.slot, report.incarnation)
        self._procs[report.pid] = _Proc(*proc, process.unresponsive_timeout_s)
        self._pids[proc] = report.pid
        self._tell(report)
        self._memory_watch.add(report.pid, process.memory_limit_bytes)

    def _on_broken(self, pid: int, why: str) -> None:
        if pid in self._procs:
            self._procs[pid].why = why

    # Exits.

    def _on_child(self) -> None:
        with contextlib.suppress(BlockingIOError):  # Nothing to read if no signal caused the call.
            os.read(self._wakeup, 4096)
        self._templates.receive()  # Handle reports of starts before exits.
        while self._reap_one():
            pass
        self._stopped.collect(self._stop_limit_of)

    def _stop_limit_of(self, pid: int) -> float | None:
        proc = self._procs.get(pid)
        return None if proc is None else proc.unresponsive_timeout_s

    def _on_stop(self, pid: int, number: int) -> None:
        proc = self._procs[pid]
        self._tell(Stopped(proc.slot, proc.incarnation, number))

    def _on_continue(self, pid: int) -> None:
        proc = self._procs[pid]
        self._tell(Continued(proc.slot, proc.incarnation))

    def _kill_stopped(self, pid: int, why: str) -> None:
        self._procs[pid].why = why
        _kernel.kill_quietly(pid, signal.SIGKILL)

    def _on_memory_high(self, pid: int, text: str) -> None:
        proc = self._procs[pid]
        self._tell(MemoryHigh(proc.slot, proc.incarnation, text))

    def _on_memory_exceeded(self, pid: int, why: str) -> None:
        proc = self._procs[pid]
        if not proc.is_kill_requested:
            proc.why = why

    def _reap_one(self) -> bool:
        """Reap one exited child and report its exit; return whether one was found."""
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        if found is None:
            return False
        pid = found.si_pid
        proc = self._procs.pop(pid, None)
        if proc is not None:
            # While its leader is not reaped, the id of the process group cannot be reused.
            _kernel.kill_group_quietly(pid, signal.SIGKILL)
        is_unexplained = (
            proc is not None
            and not proc.is_kill_requested
            and (found.si_code, found.si_status) == (os.CLD_KILLED, signal.SIGKILL)
        )
        cgroup = self._memory_deaths.cgroup_of(pid) if is_unexplained else None
        _, status, usage = os.wait4(pid, 0)
        self._stopped.forget(pid)
        if proc is not None:
            del self._pids[proc.slot, proc.incarnation]
            why = proc.why
            if why is None and is_unexplained:
                peak_bytes = usage.ru_maxrss << 10
                why = self._memory_deaths.cause(cgroup, peak_bytes)
                if why is not None:
                    why = self._memory_watch.limit_cause(pid, why, peak_bytes)
            self._memory_watch.forget(pid)
            self._tell(Exited(proc.slot, proc.incarnation, pid, status, why))
        return True

    def end(self, grace_s: float) -> None:
        """Start to end all processes; a later call can only shorten the grace period."""
        now = time.monotonic()
        if self._force_at is not None:
            self._force_at = min(self._force_at, now + grace_s)
            return
        self._force_at = now + grace_s
        self._templates.close()
        if grace_s > 0:
            for pid in self._procs:
                _kernel.kill_quietly(pid, signal.SIGTERM)

    def _left(self) -> list[int]:
        """Return the children that must end with this process."""
        if not _kernel.has_children():
            return []
        return [pid for pid in _kernel.children() if pid not in self._templates.retained_pids]

    def _end_by_force(self) -> None:
        """Kill all descendants of this process and remove the job directory."""
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        now = time.monotonic()
        deadline, daemons_until = now + _REAP_LIMIT_S, now + _DAEMON_GRACE_S
        told: set[int] = set()
        while (left := self._left()) and time.monotonic() < deadline:
            for pid in self._procs:
                _kernel.kill_group_quietly(pid, signal.SIGKILL)
            for pid in left:
                is_daemon = pid not in self._procs and _kernel.leads_session(pid)
                if not is_daemon or time.monotonic() >= daemons_until:
                    _kernel.kill_quietly(pid, signal.SIGKILL)
                elif pid not in told:
                    # It may have to undo something for the program that started it, such as a
                    # mount.
                    told.add(pid)
                    _kernel.kill_quietly(pid, signal.SIGTERM)
            # Children of a killed process may become children of this one, so reap and check again.
            poll.poll(_LOOK_AGAIN_S * 1000)
            self._on_child()
        shutil.rmtree(self._job_dir, ignore_errors=True)
        self._controller.flush_blocking(_REAP_LIMIT_S)
