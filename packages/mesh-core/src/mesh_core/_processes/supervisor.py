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
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence

from mesh_core._processes import template as _template
from mesh_core._processes.job_dir import hold
from mesh_core._processes.link import Link
from mesh_core._processes.memory_deaths import MemoryDeaths
from mesh_core._processes.memory_watch import MemoryWatch
from mesh_core._processes.messages import (
    Branch,
    Continued,
    Denied,
    End,
    Exited,
    Failed,
    Fork,
    Forked,
    Kill,
    MemoryHigh,
    Preload,
    Preloaded,
    ProcessStart,
    Retained,
    Spawn,
    Stale,
    Started,
    Stopped,
    SupervisorRequest,
    Warm,
    World,
    WorldKey,
)
from mesh_core._processes.stopped_processes import LOOK_S, StoppedProcs, StoppedTemplates
from mesh_core._system import kernel as _kernel
from mesh_core._system import stdio as _stdio

_WARM_TEMPLATE_COUNT_MAX = 4
_TRY_COUNT_MAX = 3
# The time that the kernel may need to terminate killed processes that hold gigabytes or wait for a
# device.
_REAP_LIMIT_S = 10.0
_LOOK_AGAIN_S = 0.02
# The time that a session leader may take to exit after SIGTERM.
_DAEMON_GRACE_S = 2.0
_NOW_S = 0.001


class _Batch:
    """Start requests that wait for a template or are in progress on one."""

    def __init__(
        self,
        world: World,
        processes: dict[tuple[int, int], ProcessStart],
        fds: dict[tuple[int, int], int],
        preload: tuple[str, ...] = (),
        try_count: int = 0,
    ) -> None:
        self.world = world
        self.processes = processes
        self.fds = fds
        self.preload = preload
        self.try_count = try_count
        # Whether it only makes a template import modules.
        self.is_preload = not processes


class _Template:
    """A template as the supervisor sees it; it works on the first of its batches if busy."""

    def __init__(self, link: Link, key: WorldKey | None) -> None:
        self.link = link
        self.key = key
        self.batches: deque[_Batch] = deque()
        self.is_busy = False


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
        self._cache_inlet = cache_inlet
        self._start_supervisor = start_supervisor
        self._is_blank = is_blank
        self._retained_pids: set[int] = set()
        self._job_dir = job_dir
        # Every process of the host is a fork of this one and therefore keeps the lock while it
        # lives. The directory is missing only if the controller is already dead.
        with contextlib.suppress(OSError):
            hold(job_dir)
        self._launch = launch
        self._denied = set(denied)
        is_safe = _kernel.settled_thread_count() == 1
        self._why_unsafe = None if is_safe else _template.why_threads("what site.py finds")
        self._procs: dict[int, _Proc] = {}
        self._pids: dict[tuple[int, int], int] = {}
        self._killed_before_start: set[tuple[int, int]] = set()
        self._base: _Template | None = None
        self._warm: dict[WorldKey, _Template] = {}
        self._force_at: float | None = None
        self._look_at: float | None = None
        self._stopped = StoppedProcs(self._on_stop, self._on_continue, self._kill_stopped)
        self._stopped_templates = StoppedTemplates()
        self._memory_deaths = MemoryDeaths()
        self._memory_watch = MemoryWatch(self._on_memory_high, self._on_memory_exceeded)
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._links: dict[int, Link] = {}
        self._wakeup, wakeup_write = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(wakeup_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        self._watch(self._wakeup, self._on_child)
        self._watch_link(controller, self._on_controller)
        self._watch_controller_life()

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def _watch_link(self, link: Link, handler: Callable[[], None]) -> None:
        self._links[link.fileno()] = link
        self._watch(link.fileno(), handler)

    def _unwatch_link(self, link: Link) -> None:
        del self._links[link.fileno()]
        del self._handlers[link.fileno()]
        self._epoll.unregister(link.fileno())

    def _send(self, link: Link, message: object, fds: Sequence[int] = ()) -> None:
        if link.send(message, fds):
            self._epoll.modify(link.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _watch_controller_life(self) -> None:
        """Watch the controller's pidfd; a fork of it may keep its end of the socket open."""
        try:
            handle = os.pidfd_open(self._owner)
        except OSError:
            return  # The supervisor then detects the controller's exit through the socket alone.
        self._watch(handle, lambda: self.end(0.0))

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
            for fd, events in self._epoll.poll(wait_s):
                if events & select.EPOLLOUT and fd in self._links and not self._links[fd].flush():
                    self._epoll.modify(fd, select.EPOLLIN)
                if events & ~select.EPOLLOUT and fd in self._handlers:
                    self._handlers[fd]()
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
        return self._stopped.is_empty and not self._has_batches()

    def _look_at_stopped(self) -> None:
        self._stopped.look()
        if self._has_batches():
            self._stopped_templates.look(self._procs.keys() | self._retained_pids)
        else:
            self._stopped_templates.rest()

    def _has_batches(self) -> bool:
        return any(template.batches for template in self._templates())

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
                    self._spawn(message, fds)
                case Kill():
                    self._kill(message)
                case End():
                    self.end(message.grace_s)
                case _:
                    raise AssertionError(f"unknown request {message!r}")

    def _tell(self, message: object) -> None:
        self._send(self._controller, message)

    def _spawn(self, request: Spawn, fds: list[int]) -> None:
        warm = _Batch(request.world, {}, {}, request.preload)
        bare = _Batch(request.world, {}, {})
        for process, fd in zip(request.processes, fds, strict=True):
            batch = warm if process.is_warm else bare
            batch.processes[process.slot, process.incarnation] = process
            batch.fds[process.slot, process.incarnation] = fd
        for batch in (bare, warm):
            # A request without processes only makes a template import modules.
            if batch.processes or (batch is warm and not request.processes):
                self._enqueue(batch)

    def _kill(self, request: Kill) -> None:
        proc = (request.slot, request.incarnation)
        pid = self._pids.get(proc)
        if pid is not None:
            # The process is not reaped yet, because reaping removes the entry. Its pid cannot have
            # been reused.
            self._procs[pid].is_kill_requested |= request.signal == signal.SIGKILL
            _kernel.kill_quietly(pid, request.signal)
        elif request.signal == signal.SIGKILL:
            self._kill_before_start(proc)

    def _kill_before_start(self, proc: tuple[int, int]) -> None:
        for template in self._templates():
            for batch in template.batches:
                if proc not in batch.processes:
                    continue
                if template.is_busy and batch is template.batches[0]:
                    self._killed_before_start.add(proc)
                else:
                    self._report_not_started(batch, proc, "it was killed before it started")

    def _report_not_started(self, batch: _Batch, proc: tuple[int, int], why: str) -> None:
        del batch.processes[proc]
        os.close(batch.fds.pop(proc))
        self._killed_before_start.discard(proc)
        self._tell(Exited(*proc, None, 0, why))

    # Templates.

    def _templates(self) -> list[_Template]:
        return [*([self._base] if self._base else []), *self._warm.values()]

    def _enqueue(self, batch: _Batch) -> None:
        if self._force_at is not None:
            self._fail(batch, "the host was closed before it started")
            return
        try:
            template = self._warm_template(batch) if batch.preload else self._base_template()
        except OSError as error:
            self._fail(batch, f"cannot start a template: {error.strerror}")
            return
        template.batches.append(batch)
        self._advance(template)

    def _base_template(self) -> _Template:
        if self._base is None:
            self._base = self._forked_template(None)
        return self._base

    def _forked_template(self, key: WorldKey | None) -> _Template:
        """Fork this process to create a template."""
        ours, theirs = socket.socketpair()
        supervisor = os.getpid()
        if _kernel.fork() == 0:
            self._become_template(ours, Link(theirs), supervisor)
        theirs.close()
        return self._adopt_template(_Template(Link(ours), key))

    def _become_template(self, ours: socket.socket, link: Link, supervisor: int) -> None:
        """Release everything that belongs to the supervisor and serve; runs in the fork."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            ours.close()
            self._controller.close()
            for template in self._templates():
                template.link.close()
            # Log pipes are the important ones: a copy held here would prevent their readers from
            # seeing EOF.
            _kernel.close_all_but([link.fileno(), self._cache_inlet])
            source = _template.Source(
                supervisor,
                self._why_unsafe,
                self._is_blank,
                self._start_supervisor,
                self._cache_inlet,
            )
            _template.serve(link, self._launch, source)
        except BaseException:
            traceback.print_exc()
            _stdio.flush()
        finally:
            os._exit(1)

    def _warm_template(self, batch: _Batch) -> _Template:
        key = batch.world.key
        template = self._warm.pop(key, None)
        if template is None:
            # A supervisor that was forked from a retained template already holds the modules, so it
            # must not serve as a bare template.
            template = self._branch(key) if self._is_blank else self._forked_template(key)
            self._retire_unused()
        self._warm[key] = template  # Dictionary order is the order of last use.
        return template

    def _branch(self, key: WorldKey) -> _Template:
        """Let the bare template fork another template."""
        base = self._base_template()
        ours, theirs = socket.socketpair()
        self._send(base.link, Branch(), [theirs.detach()])
        return self._adopt_template(_Template(Link(ours), key))

    def _retire_unused(self) -> None:
        idle = [template for template in self._warm.values() if not template.batches]
        excess = len(self._warm) + 1 - _WARM_TEMPLATE_COUNT_MAX
        for template in idle[: max(0, excess)]:
            self._forget_template(template)

    def _adopt_template(self, template: _Template) -> _Template:
        self._watch_link(template.link, lambda: self._on_template(template))
        return template

    def _forget_template(self, template: _Template) -> None:
        """Close the link, which makes the template exit."""
        self._take_out(template)
        if not template.link.is_closed:
            self._unwatch_link(template.link)
            template.link.close()

    def _take_out(self, template: _Template) -> None:
        """Stop assigning work to a template; its forks may still report why they failed."""
        if template is self._base:
            self._base = None
        elif template.key is not None and self._warm.get(template.key) is template:
            del self._warm[template.key]

    def _advance(self, template: _Template) -> None:
        """Send the next request to the template if it is idle."""
        if template.is_busy or not template.batches:
            return
        batch = template.batches[0]
        template.is_busy = True
        batch.try_count += 1
        if template.key is not None:
            request = Preload(batch.world, batch.preload, frozenset(self._denied))
            self._send(template.link, request)
        else:
            self._request_fork(template, batch)

    def _request_fork(self, template: _Template, batch: _Batch) -> None:
        for proc in self._killed_before_start & batch.processes.keys():
            self._report_not_started(batch, proc, "it was killed before it started")
        # The template gets copies, so that another template can try again if this one is killed.
        fds = [os.dup(batch.fds[proc]) for proc in batch.processes]
        self._send(template.link, Fork(batch.world, tuple(batch.processes.values())), fds)

    def _on_template(self, template: _Template) -> None:
        if template.link.is_closed:
            return
        try:
            messages = template.link.receive()
        except EOFError:
            self._replace_template(template)
            return
        for message, _ in messages:
            match message:
                case Started():
                    self._on_started(template, message)
                case Failed():
                    self._on_failed(template, message)
                case Preloaded():
                    for module, why in message.denied.items():
                        self._denied.add(module)
                        self._tell(Denied(module, why))
                    self._request_fork(template, template.batches[0])
                case Stale():
                    self._replace_template(template)
                    return
                case Retained():
                    self._retained_pids.add(message.pid)
                case Forked():
                    self._on_forked(template, message.is_last)
                case _:
                    raise AssertionError(f"unknown report {message!r}")

    def _on_started(self, template: _Template, report: Started) -> None:
        proc = (report.slot, report.incarnation)
        batch = template.batches[0]
        process = batch.processes.pop(proc)
        os.close(batch.fds.pop(proc))
        self._procs[report.pid] = _Proc(*proc, process.unresponsive_timeout_s)
        self._pids[proc] = report.pid
        self._tell(report)
        self._memory_watch.add(report.pid, process.memory_limit_bytes)
        if proc in self._killed_before_start:
            self._killed_before_start.discard(proc)
            _kernel.kill_quietly(report.pid, signal.SIGKILL)

    def _on_failed(self, template: _Template, report: Failed) -> None:
        if report.pid is None:
            proc = (report.slot, report.incarnation)
            self._report_not_started(template.batches[0], proc, report.why)
        elif report.pid in self._procs:
            self._procs[report.pid].why = report.why
        # Otherwise the intermediate process was killed before it could report the start, and the
        # start is retried.

    def _on_forked(self, template: _Template, is_last: bool) -> None:
        batch = template.batches.popleft()
        template.is_busy = False
        if is_last:
            self._take_out(template)
            waiting = [*template.batches]
            template.batches.clear()
            for one in waiting:
                self._enqueue(one)
        if batch.is_preload:
            self._tell(Warm())
        if batch.processes:
            self._retry(batch)  # An intermediate process was killed before it finished.
        self._advance(template)

    def _replace_template(self, template: _Template) -> None:
        """Assign the waiting batches to another template, because this one is gone."""
        self._forget_template(template)
        for batch in template.batches:
            self._retry(batch)

    def _retry(self, batch: _Batch) -> None:
        if batch.try_count < _TRY_COUNT_MAX:
            self._enqueue(batch)
        else:
            self._fail(batch, "its template was killed repeatedly")

    def _fail(self, batch: _Batch, why: str) -> None:
        for proc in tuple(batch.processes):
            self._report_not_started(batch, proc, why)

    # Exits.

    def _on_child(self) -> None:
        with contextlib.suppress(BlockingIOError):  # Nothing to read if no signal caused the call.
            os.read(self._wakeup, 4096)
        for template in self._templates():
            self._on_template(template)  # Handle reports of starts before exits.
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
        for template in self._templates():
            self._on_template(template)
        self._force_at = now + grace_s
        for template in self._templates():
            self._forget_template(template)
            for batch in template.batches:
                self._fail(batch, "the host was closed before it started")
        if grace_s > 0:
            for pid in self._procs:
                _kernel.kill_quietly(pid, signal.SIGTERM)

    def _left(self) -> list[int]:
        """Return the children that must end with this process."""
        if not _kernel.has_children():
            return []
        return [pid for pid in _kernel.children() if pid not in self._retained_pids]

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
