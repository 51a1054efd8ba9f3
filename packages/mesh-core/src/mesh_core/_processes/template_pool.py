"""The templates of a process supervisor, and the start requests that wait for them.

Processes without user modules are forked from the base template. Each environment has a warm
template, which imports the modules that its processes need. A request whose template is killed is
repeated with another one.
"""

import os
import signal
import socket
import traceback
from collections import deque
from collections.abc import Callable, Sequence

from mesh_core._processes import template as _template
from mesh_core._processes.link import Link
from mesh_core._processes.link_poller import LinkPoller
from mesh_core._processes.messages import (
    Branch,
    Denied,
    Exited,
    Failed,
    Fork,
    Forked,
    Preload,
    Preloaded,
    ProcessStart,
    Retained,
    Spawn,
    Stale,
    Started,
    Warm,
    World,
    WorldKey,
)
from mesh_core._system import kernel as _kernel
from mesh_core._system import stdio as _stdio

_WARM_TEMPLATE_COUNT_MAX = 4
_TRY_COUNT_MAX = 3


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


class TemplatePool:
    """Starts processes with templates, which it creates on demand and replaces if they exit.

    Args:
        poller: The event loop, which handles the reports of templates.
        controller: Link to the controller of the host's processes.
        launch: The module whose `main` runs a process.
        denied: Names of modules that must never be preloaded.
        source: The origin of the templates.
        on_started: Called with each process that a template has forked, and with its request.
        on_broken: Called with the pid of a process that could not start, and the reason.

    Attributes:
        retained_pids: Retained templates, which outlive the supervisor.
    """

    def __init__(
        self,
        poller: LinkPoller,
        controller: Link,
        launch: str,
        denied: Sequence[str],
        source: _template.Source,
        *,
        on_started: Callable[[Started, ProcessStart], None],
        on_broken: Callable[[int, str], None],
    ) -> None:
        self.retained_pids: set[int] = set()
        self._poller = poller
        self._controller = controller
        self._launch = launch
        self._denied = set(denied)
        self._source = source
        self._on_process_started = on_started
        self._on_process_broken = on_broken
        self._base: _Template | None = None
        self._warm: dict[WorldKey, _Template] = {}
        self._killed_before_start: set[tuple[int, int]] = set()
        self._is_closed = False

    @property
    def has_batches(self) -> bool:
        """Whether start requests wait for a template or are in progress."""
        return any(template.batches for template in self._templates())

    def start(self, request: Spawn, fds: list[int]) -> None:
        """Start processes, or import modules in a template if the request has no processes."""
        warm = _Batch(request.world, {}, {}, request.preload)
        bare = _Batch(request.world, {}, {})
        for process, fd in zip(request.processes, fds, strict=True):
            batch = warm if process.is_warm else bare
            batch.processes[process.slot, process.incarnation] = process
            batch.fds[process.slot, process.incarnation] = fd
        for batch in (bare, warm):
            if batch.processes or (batch is warm and not request.processes):
                self._enqueue(batch)

    def kill(self, proc: tuple[int, int]) -> None:
        """Prevent the start of a process, given by slot and incarnation, or kill it afterwards."""
        for template in self._templates():
            for batch in template.batches:
                if proc not in batch.processes:
                    continue
                if template.is_busy and batch is template.batches[0]:
                    self._killed_before_start.add(proc)
                else:
                    self._report_not_started(batch, proc, "it was killed before it started")

    def receive(self) -> None:
        """Handle all reports of templates that have arrived."""
        for template in self._templates():
            self._on_template(template)

    def close(self) -> None:
        """Start no more processes; templates exit once they have done what is in progress."""
        self.receive()
        self._is_closed = True
        for template in self._templates():
            self._forget(template)
            for batch in template.batches:
                self._fail(batch, "the host was closed before it started")

    def _tell(self, message: object) -> None:
        self._poller.send(self._controller, message)

    def _templates(self) -> list[_Template]:
        return [*([self._base] if self._base else []), *self._warm.values()]

    # Templates.

    def _base_template(self) -> _Template:
        if self._base is None:
            self._base = self._forked_template(None)
        return self._base

    def _forked_template(self, key: WorldKey | None) -> _Template:
        """Fork this process to create a template."""
        ours, theirs = socket.socketpair()
        if _kernel.fork() == 0:
            self._become_template(ours, Link(theirs))
        theirs.close()
        return self._adopt(_Template(Link(ours), key))

    def _become_template(self, ours: socket.socket, link: Link) -> None:
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
            _kernel.close_all_but([link.fileno(), self._source.cache_inlet])
            _template.serve(link, self._launch, self._source)
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
            is_blank = self._source.is_blank
            template = self._branch(key) if is_blank else self._forked_template(key)
            self._retire_unused()
        self._warm[key] = template  # Dictionary order is the order of last use.
        return template

    def _branch(self, key: WorldKey) -> _Template:
        """Let the bare template fork another template."""
        base = self._base_template()
        ours, theirs = socket.socketpair()
        self._poller.send(base.link, Branch(), [theirs.detach()])
        return self._adopt(_Template(Link(ours), key))

    def _retire_unused(self) -> None:
        idle = [template for template in self._warm.values() if not template.batches]
        excess = len(self._warm) + 1 - _WARM_TEMPLATE_COUNT_MAX
        for template in idle[: max(0, excess)]:
            self._forget(template)

    def _adopt(self, template: _Template) -> _Template:
        self._poller.add_link(template.link, lambda: self._on_template(template))
        return template

    def _forget(self, template: _Template) -> None:
        """Close the link, which makes the template exit."""
        self._take_out(template)
        if not template.link.is_closed:
            self._poller.remove_link(template.link)
            template.link.close()

    def _take_out(self, template: _Template) -> None:
        """Stop assigning work to a template; its forks may still report why they failed."""
        if template is self._base:
            self._base = None
        elif template.key is not None and self._warm.get(template.key) is template:
            del self._warm[template.key]

    def _replace(self, template: _Template) -> None:
        """Assign the waiting batches to another template, because this one is gone."""
        self._forget(template)
        for batch in template.batches:
            self._retry(batch)

    # Start requests.

    def _enqueue(self, batch: _Batch) -> None:
        if self._is_closed:
            self._fail(batch, "the host was closed before it started")
            return
        try:
            template = self._warm_template(batch) if batch.preload else self._base_template()
        except OSError as error:
            self._fail(batch, f"cannot start a template: {error.strerror}")
            return
        template.batches.append(batch)
        self._advance(template)

    def _advance(self, template: _Template) -> None:
        """Send the next request to the template if it is idle."""
        if template.is_busy or not template.batches:
            return
        batch = template.batches[0]
        template.is_busy = True
        batch.try_count += 1
        if template.key is not None:
            request = Preload(batch.world, batch.preload, frozenset(self._denied))
            self._poller.send(template.link, request)
        else:
            self._request_fork(template, batch)

    def _request_fork(self, template: _Template, batch: _Batch) -> None:
        for proc in self._killed_before_start & batch.processes.keys():
            self._report_not_started(batch, proc, "it was killed before it started")
        # The template gets copies, so that another template can try again if this one is killed.
        fds = [os.dup(batch.fds[proc]) for proc in batch.processes]
        self._poller.send(template.link, Fork(batch.world, tuple(batch.processes.values())), fds)

    def _retry(self, batch: _Batch) -> None:
        if batch.try_count < _TRY_COUNT_MAX:
            self._enqueue(batch)
        else:
            self._fail(batch, "its template was killed repeatedly")

    def _fail(self, batch: _Batch, why: str) -> None:
        for proc in tuple(batch.processes):
            self._report_not_started(batch, proc, why)

    def _report_not_started(self, batch: _Batch, proc: tuple[int, int], why: str) -> None:
        del batch.processes[proc]
        os.close(batch.fds.pop(proc))
        self._killed_before_start.discard(proc)
        self._tell(Exited(*proc, None, 0, why))

    # Reports of templates.

    def _on_template(self, template: _Template) -> None:
        if template.link.is_closed:
            return
        try:
            messages = template.link.receive()
        except EOFError:
            self._replace(template)
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
                    self._replace(template)
                    return
                case Retained():
                    self.retained_pids.add(message.pid)
                case Forked():
                    self._on_forked(template, message.is_last)
                case _:
                    raise AssertionError(f"unknown report {message!r}")

    def _on_started(self, template: _Template, report: Started) -> None:
        proc = (report.slot, report.incarnation)
        batch = template.batches[0]
        process = batch.processes.pop(proc)
        os.close(batch.fds.pop(proc))
        self._on_process_started(report, process)
        if proc in self._killed_before_start:
            self._killed_before_start.discard(proc)
            _kernel.kill_quietly(report.pid, signal.SIGKILL)

    def _on_failed(self, template: _Template, report: Failed) -> None:
        if report.pid is None:
            proc = (report.slot, report.incarnation)
            self._report_not_started(template.batches[0], proc, report.why)
        else:
            # If the intermediate process was killed before it could report the start, the pid is
            # unknown, and the start is repeated.
            self._on_process_broken(report.pid, report.why)

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
