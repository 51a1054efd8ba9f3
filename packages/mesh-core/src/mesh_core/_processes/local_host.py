"""The controller's interface to the processes of this host."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, ParamSpec

from mesh_core._logging.capture import ProcLog
from mesh_core._logging.line import LogLine
from mesh_core._processes.event_reader import EventReader
from mesh_core._processes.exit_report import ExitReport, exit_report, signal_name
from mesh_core._processes.link import FDS_PER_MESSAGE_MAX, Link, close_all
from mesh_core._processes.messages import (
    Continued,
    Denied,
    End,
    Exited,
    Kill,
    MemoryHigh,
    ProcessStart,
    Spawn,
    Started,
    Stopped,
    SupervisorRequest,
    Warm,
    World,
)
from mesh_core._processes.process_spec import ProcSpec, changed_world, process_start
from mesh_core._processes.supervisor_start import execute
from mesh_core._processes.template_cache import ForkedSupervisor, TemplateCacheClient, ask
from mesh_core._system import kernel as _kernel

_SUPERVISOR_NAME = "mesh"
_SUPERVISOR_SLOT = -1
# The time beyond the grace period that the supervisor needs to kill, reap and report the rest.
_CLOSE_LIMIT_S = 12.0
_FLUSH_LIMIT_S = 5.0
_DEATH_LIMIT_S = 1.0


class Stop(NamedTuple):
    """The fact that a signal has stopped a process."""

    signal: int
    since: float
    """Monotonic clock, in seconds."""


class _Proc:
    def __init__(
        self, name: str, log: ProcLog, supervisor: "_Supervisor", unresponsive_timeout_s: float
    ) -> None:
        self.name = name
        self.log = log
        self.supervisor = supervisor
        self.unresponsive_timeout_s = unresponsive_timeout_s
        self.pid: int | None = None
        self.signal_sent: int | None = None
        self.stop: Stop | None = None


class _Supervisor:
    def __init__(
        self,
        link: Link,
        process: "subprocess.Popen[bytes] | ForkedSupervisor",
        log: ProcLog,
        env: Mapping[str, str],
    ) -> None:
        self.link = link
        self.process = process
        self.log = log
        # The supervisor's environment when it started.
        self.env = env
        # Seconds for which it has been stopped, in running time of this process.
        self.stopped_s = 0.0


_Key = tuple[int, int]
P = ParamSpec("P")


class LocalHost:
    """Starts, monitors and stops the processes of this host, and forwards their output.

    Every process descends from a process supervisor, a child of the controller, which kills all of
    them when the controller is gone, for any reason.

    Args:
        job_dir: Removed with its content when the host is closed or the controller dies.
        on_exit: Called on a thread of the host soon after each exit, when the log is complete.
        on_start: Called like `on_exit`, with slot, incarnation and pid of each started process. The
            process may print or send something earlier.
        on_look: Called periodically on a thread of the host, with the running time since the last
            call in seconds.
        on_memory_high: Called like `on_exit`, with slot and a description, when a process is close
            to its memory limit.
        on_log: Called on another thread with each line. While it blocks, only processes that print
            much are delayed.
        tail_lines: The number of last lines of a process to keep for its exit report.
        log_dir: The directory for the complete log of each process; None for no logs.
        deny_preload: Modules that templates must never import.
        launch: The module whose `main` runs a process.
        template_cache: The template cache of the worker, to take imported modules from and leave
            them in; None for no cache.
    """

    def __init__(
        self,
        job_dir: Path,
        *,
        on_exit: Callable[[ExitReport], None],
        on_log: Callable[[LogLine], None],
        on_start: Callable[[int, int, int], None] | None = None,
        on_look: Callable[[float], None] | None = None,
        on_memory_high: Callable[[int, str], None] | None = None,
        tail_lines: int = 50,
        log_dir: Path | None = None,
        deny_preload: Sequence[str] = (),
        launch: str = "mesh_core._program.launch",
        template_cache: TemplateCacheClient | None = None,
    ) -> None:
        self._job_dir = job_dir
        self._template_cache = template_cache
        self._on_exit = on_exit
        self._on_start = on_start
        self._on_look = on_look
        self._on_memory_high = on_memory_high
        self._tail_lines = tail_lines
        self._log_dir = log_dir
        self._launch = launch
        self._denied: dict[str, str] = dict.fromkeys(deny_preload, "it is denied by configuration")
        self._lock = threading.RLock()
        self._procs: dict[_Key, _Proc] = {}
        self._latest: dict[int, _Key] = {}
        self._supervisor: _Supervisor | None = None
        self._supervisor_count = 0
        self._reader = EventReader(on_log, self._look)
        self._owner_pid = os.getpid()
        self._is_closing = False
        self._has_closer = False
        self._is_closed = threading.Event()
        self._is_supervisor_gone = threading.Event()
        self._is_warm = threading.Event()

    @property
    def denied(self) -> dict[str, str]:
        """The modules that are not preloaded, with the reason for each, by name."""
        with self._lock:
            return dict(self._denied)

    def pid(self, slot: int) -> int | None:
        """Return the process id in a slot; None before its start and after its exit.

        The id is known before `on_log` is called with the first line of the process.
        """
        with self._lock:
            proc = self._procs.get(self._latest.get(slot, (slot, -1)))
            return None if proc is None else proc.pid or proc.log.pid

    def spawn(self, specs: Sequence[ProcSpec], preload: Sequence[str] = ()) -> None:
        """Start processes and return before they run; later problems are reported as exits.

        Args:
            specs: The processes to start. If there are none, the modules are imported for processes
                that are started later.
            preload: Modules that the processes will need. Those that prove safe are imported once,
                in the template.

        Raises:
            ValueError: A binding is malformed or not possible on this host, or a slot is taken.
            OSError: The limit of descriptors or processes is reached.
            RuntimeError: The host is closed.
        """
        with self._lock:
            if self._is_closing:
                raise RuntimeError("cannot spawn: the host is closed")
            self._check_free(specs)
            world = _current_world()
            supervisor = self._supervisor or self._start_supervisor(world, preload)
            is_same_env = all(spec.env == specs[0].env for spec in specs)
            if specs and is_same_env:
                world = changed_world(world, specs[0].env)
            processes = [
                process_start(spec, world, supervisor.env, is_same_env, self._launch)
                for spec in specs
            ]
            self._send_starts(supervisor, world, processes, tuple(preload))

    def wait_until_warm(self, limit_s: float) -> None:
        """Wait until a template is ready that was requested by `spawn` without processes."""
        self._is_warm.wait(limit_s)

    def kill(self, slot: int, sig: int = signal.SIGKILL) -> None:
        """Send a signal to the process in a slot, if it has one."""
        with self._lock:
            key = self._latest.get(slot)
            proc = self._procs.get(key) if key is not None else None
            if key is None or proc is None:
                return
            proc.signal_sent = sig
            if proc.supervisor.stopped_s and proc.pid is not None:
                # The pid cannot have been reused, because only the supervisor could reap it.
                _kernel.kill_quietly(proc.pid, sig)
            else:
                self._send(proc.supervisor, Kill(*key, sig))

    def send_signal(self, slot: int, sig: int) -> None:
        """Send a signal to the process in a slot, if it is alive, before this returns."""
        pid = self.pid(slot)
        if pid is not None:
            _kernel.kill_quietly(pid, sig)

    def stop_of(self, slot: int) -> Stop | None:
        """Return the signal that stopped the process in a slot and the time; None if it runs."""
        with self._lock:
            proc = self._procs.get(self._latest.get(slot, (slot, -1)))
            return None if proc is None else proc.stop

    def stopped_supervisor(self) -> tuple[int, float] | None:
        """Return the pid of the supervisor and the seconds it has been stopped; None if it runs."""
        with self._lock:
            supervisor = self._supervisor
            if supervisor is None or not supervisor.stopped_s:
                return None
            return supervisor.process.pid, supervisor.stopped_s

    def flush(self, limit_s: float = _FLUSH_LIMIT_S) -> bool:
        """Wait until every line printed so far was passed to `on_log`; return whether it was."""
        return self._reader.flush(limit_s)

    def close(self, grace: float) -> None:
        """End all processes and wait for their exit reports; may be called more than once.

        Args:
            grace: Seconds between SIGTERM and SIGKILL; 0 kills immediately.
        """
        if os.getpid() != self._owner_pid:
            return  # A fork of the controller owns nothing.
        is_callback = self._reader.is_current_thread()
        with self._lock:
            self._is_closing = True
            supervisor = self._supervisor
            if supervisor is not None:
                self._send(supervisor, End(grace))
            is_closer = not is_callback and not self._has_closer
            self._has_closer |= is_closer
        if is_callback:
            return  # It cannot wait for itself; another call or the end of the controller waits.
        if not is_closer:
            self._is_closed.wait(grace + _CLOSE_LIMIT_S)
            return
        if supervisor is not None and not self._is_supervisor_gone.wait(grace + _CLOSE_LIMIT_S):
            supervisor.process.kill()
            self._is_supervisor_gone.wait(_CLOSE_LIMIT_S)
        self._reader.flush(_FLUSH_LIMIT_S)
        self._reader.close()
        shutil.rmtree(self._job_dir, ignore_errors=True)
        self._is_closed.set()

    # Spawning.

    def _check_free(self, specs: Sequence[ProcSpec]) -> None:
        keys = [(spec.slot, spec.incarnation) for spec in specs]
        taken = self._procs.keys() & set(keys)
        if taken or len(set(keys)) < len(keys):
            raise ValueError(f"slots are taken: {sorted(taken) or sorted(keys)}")

    def _send_starts(
        self,
        supervisor: _Supervisor,
        world: World,
        processes: Sequence[ProcessStart],
        preload: tuple[str, ...],
    ) -> None:
        pipes = _open_pipes(len(processes))
        for process, (read, _) in zip(processes, pipes, strict=True):
            key = (process.slot, process.incarnation)
            log = self._open_log(*key, process.name, read)
            self._procs[key] = _Proc(process.name, log, supervisor, process.unresponsive_timeout_s)
            self._latest[process.slot] = key
            self._reader.add_log(log)
        # Without processes, the request only makes a template import the modules.
        for start in range(0, max(len(processes), 1), FDS_PER_MESSAGE_MAX):
            part = slice(start, start + FDS_PER_MESSAGE_MAX)
            request = Spawn(world, tuple(processes[part]), preload)
            self._send(supervisor, request, [write for _, write in pipes[part]])

    def _open_log(self, slot: int, incarnation: int, name: str, fd: int) -> ProcLog:
        path = None
        if self._log_dir is not None:
            plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).strip("_")
            path = self._log_dir / f"{plain}-{slot}.{incarnation}.log"
        return ProcLog(slot, incarnation, name, fd, self._tail_lines, path)

    def _send(self, supervisor: _Supervisor, message: object, fds: Sequence[int] = ()) -> None:
        if supervisor.link.send(message, fds):
            self._reader.want_write(supervisor.link)

    # The process supervisor.

    def _start_supervisor(self, world: World, preload: Sequence[str]) -> _Supervisor:
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        try:
            cache_inlet = None if self._template_cache is None else self._template_cache.cache_inlet
            ends = (theirs.fileno(), write, cache_inlet)
            process = self._grow_supervisor(world, preload, theirs.fileno(), write) or execute(
                world, self._job_dir, self._launch, list(self._denied), ends
            )
        except BaseException:
            os.close(read)
            ours.close()
            raise
        finally:
            os.close(write)
            theirs.close()
        log = self._open_log(_SUPERVISOR_SLOT, self._supervisor_count, _SUPERVISOR_NAME, read)
        supervisor = _Supervisor(Link(ours), process, log, world.env)
        self._supervisor = supervisor
        self._supervisor_count += 1
        self._reader.add_log(log)
        self._reader.add_link(
            supervisor.link,
            lambda message: self._on_report(supervisor, message),
            lambda: self._on_supervisor_gone(supervisor),
        )
        return supervisor

    def _grow_supervisor(
        self, world: World, preload: Sequence[str], link: int, log: int
    ) -> ForkedSupervisor | None:
        """Fork a supervisor from the retained template; return None if none is available."""
        if self._template_cache is None or self._template_cache.latest is None or not preload:
            return None
        wanted = SupervisorRequest(
            world,
            frozenset(preload),
            str(self._job_dir.absolute()),
            self._launch,
            ",".join(self._denied),
            os.getpid(),
        )
        return ask(self._template_cache.latest, wanted, link, log)

    def _on_report(self, supervisor: _Supervisor, message: object) -> None:
        match message:
            case Started():
                with self._lock:
                    proc = self._procs.get((message.slot, message.incarnation))
                    if proc is None:
                        # The start was abandoned while the supervisor was stopped.
                        sig = signal.SIGKILL
                        self._send(supervisor, Kill(message.slot, message.incarnation, sig))
                        return
                    proc.pid = message.pid
                if self._on_start is not None:
                    self._call(self._on_start, message.slot, message.incarnation, message.pid)
            case Exited():
                self._on_exited((message.slot, message.incarnation), message)
            case Stopped():
                self._note_stop(message, Stop(message.signal, time.monotonic()))
            case Continued():
                self._note_stop(message, None)
            case MemoryHigh():
                if self._on_memory_high is not None:
                    self._call(self._on_memory_high, message.slot, message.text)
            case Warm():
                self._is_warm.set()
            case Denied():
                with self._lock:
                    self._denied[message.module] = message.why
            case _:
                raise AssertionError(f"unknown report {message!r}")

    def _on_exited(self, key: _Key, message: Exited) -> None:
        with self._lock:
            proc = self._procs.pop(key, None)
            if proc is None:
                return  # The exit was detected before, while the supervisor was stopped.
            if self._latest.get(key[0]) == key:
                del self._latest[key[0]]
        self._reader.finish_log(proc.log)
        report = exit_report(
            message, proc.name, proc.log.tail, proc.signal_sent, is_closing=self._is_closing
        )
        self._call(self._on_exit, report)

    def _note_stop(self, message: Stopped | Continued, stop: Stop | None) -> None:
        with self._lock:
            proc = self._procs.get((message.slot, message.incarnation))
            if proc is not None:
                proc.stop = stop

    # A stopped supervisor.

    def _look(self, passed_s: float) -> None:
        """Check whether the supervisor is stopped; if so, perform its urgent tasks."""
        with self._lock:
            supervisor = self._supervisor
            procs = dict(self._procs)
        if supervisor is not None:
            is_stopped = _kernel.state_of(supervisor.process.pid) == "T"
            supervisor.stopped_s = supervisor.stopped_s + passed_s if is_stopped else 0.0
            if supervisor.stopped_s:
                for key, proc in procs.items():
                    self._check_process(supervisor, key, proc)
        if self._on_look is not None:
            self._call(self._on_look, passed_s)

    def _check_process(self, supervisor: _Supervisor, key: _Key, proc: _Proc) -> None:
        """Detect the exit of a process of a stopped supervisor, or abandon an overdue start."""
        pid = proc.pid or proc.log.pid
        if pid is not None:
            status = _kernel.status_of_ended(pid)
            if status is not None:
                _kernel.kill_group_quietly(pid, signal.SIGKILL)
                self._on_exited(key, Exited(*key, pid, status, None))
        elif supervisor.stopped_s >= proc.unresponsive_timeout_s:
            why = (
                f"its process supervisor (pid {supervisor.process.pid}), parent of all processes"
                f" of the host, has been stopped by a signal for {supervisor.stopped_s:.0f} s"
            )
            self._on_exited(key, Exited(*key, None, 0, why))

    def _call(self, callback: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the owner's callback, whose exceptions must not end the monitoring."""
        try:
            callback(*args, **kwargs)
        except Exception:
            traceback.print_exc()

    def _on_supervisor_gone(self, supervisor: _Supervisor) -> None:
        """Kill everything left of a supervisor and report the exits that it did not report."""
        status = supervisor.process.wait()
        with self._lock:
            if self._supervisor is supervisor:
                self._supervisor = None
            left = {key: proc for key, proc in self._procs.items() if proc.supervisor is supervisor}
        for proc in left.values():
            self._reader.drain_log(proc.log)
            proc.pid = proc.pid or proc.log.pid
        pids = [proc.pid for proc in left.values() if proc.pid is not None]
        # The kernel kills processes with their parent, but not the children of these processes.
        for pid in pids:
            _kernel.kill_group_quietly(pid, signal.SIGKILL)
        _kernel.wait_until_dead(pids, _DEATH_LIMIT_S)
        for pid in pids:
            _kernel.kill_group_quietly(pid, signal.SIGKILL)
        how = "ended" if status is None else f"exited with {status}"
        if status is not None and status < 0:
            how = f"was killed by {signal_name(-status)}"
        why = f"its process supervisor, the parent of all processes of the host, {how}"
        for key, proc in left.items():
            self._on_exited(key, Exited(*key, proc.pid, signal.SIGKILL, why))
        self._reader.finish_log(supervisor.log)
        if self._is_closing:
            self._is_supervisor_gone.set()


def _open_pipes(count: int) -> list[tuple[int, int]]:
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            pipes.append(os.pipe())
    except OSError as error:
        for pipe in pipes:
            close_all(pipe)
        why = f"cannot open {count} pipes for logs: {error.strerror}: raise the limit (ulimit -n)"
        raise OSError(error.errno, why) from error
    return pipes


def _current_world() -> World:
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        cwd = "/"
    path = tuple(item if isinstance(item, str) else str(item) for item in sys.path)
    return World(dict(os.environ), path, cwd, sys.argv[0] if sys.argv else "")
