"""A template: a warm single-threaded interpreter that forks processes.

The supervisor forks the first template before any user module is imported. Templates that hold user
modules are forked from the first one. Each import runs in a separate fork, which becomes the
template if the import proves safe and is killed otherwise. An import therefore cannot damage a
template, whether it starts threads, opens a GPU, hangs or crashes.

A template forks through an intermediate process (the *forker*): a short-lived fork of itself that
forks the processes of a batch and exits. The supervisor then becomes the parent of these processes.
It is therefore the parent of every process and detects its exit immediately, regardless of which
templates start, import, fork or exit.
"""

import contextlib
import faulthandler
import gc
import importlib
import importlib.util
import itertools
import os
import select
import signal
import socket
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from mesh_core._processes.child import ChildInheritance, apply_changes, become
from mesh_core._processes.command import BootstrapCommand
from mesh_core._processes.exit_report import signal_name
from mesh_core._processes.link import Link, close_all, message_pair
from mesh_core._processes.messages import (
    Branch,
    Failed,
    Fork,
    Forked,
    Preload,
    Preloaded,
    ProcessStart,
    Retained,
    Stale,
    Started,
    SupervisorRequest,
    World,
)
from mesh_core._processes.retained_template import send_to_cache, serve_retained, version
from mesh_core._system import kernel as _kernel
from mesh_core._system import stdio as _stdio

# Modules that nearly every process needs and that are safe to hold in a template.
_BASE_MODULES = ("asyncio", "cloudpickle", "logging", "pickle", "threading")
_IMPORT_LIMIT_S = 300.0
_SAFE = "safe"
_FAILED = "failed"
_FORKER_COUNT_MAX = 8
_FORKS_PER_FORKER_MIN = 4


class Source(NamedTuple):
    """The origin of a template."""

    supervisor: int
    """The pid of the process supervisor."""
    why_unsafe: str | None
    """Why processes must not be forked from this interpreter; None if they may."""
    is_blank: bool
    """Whether the interpreter holds no user module yet."""
    start_supervisor: Callable[[int, SupervisorRequest], None]
    """Runs a supervisor in a fork of a retained template."""
    cache_inlet: int | None
    """The descriptor through which retained templates reach the worker's cache, if it has one."""


def serve(link: Link, launch: str, source: Source) -> NoReturn:
    """Run the first template until the supervisor is gone.

    Args:
        link: Link to the supervisor.
        launch: The module whose `main` runs a process.
        source: The origin of the template.
    """
    gc.disable()
    sys.modules["__main__"] = types.ModuleType("__main__")
    template = _Template(link, launch, source)
    template.import_base()
    while True:
        try:
            message, fds = link.receive_one()
        except (EOFError, OSError):
            os._exit(0)
        template.handle(message, fds)
        link = template.link


class _Template:
    def __init__(self, link: Link, launch: str, source: Source) -> None:
        self.link = link
        self._launch = launch
        self._supervisor = source.supervisor
        self._is_blank = source.is_blank
        self._cache_inlet = source.cache_inlet
        self._start_supervisor = source.start_supervisor
        self._tried: set[str] = set()
        self._base: frozenset[str] = frozenset()
        self._sources: dict[str, tuple[int, int]] = {}
        self._why_unsafe = source.why_unsafe
        # Whether it holds more modules than the supervisor that it was forked from.
        self._has_grown = source.is_blank
        self._adopt_supervisor()

    def _adopt_supervisor(self) -> None:
        """Bind the lifetime of this template to its parent; exit if the parent is already dead."""
        parent = os.getppid()
        _kernel.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)

    def import_base(self) -> None:
        """Import the modules that every process needs."""
        _kernel.set_title("mesh-template")
        for name in (*_BASE_MODULES, self._launch):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name != name:
                    traceback.print_exc()
            except Exception:
                traceback.print_exc()
        faulthandler.enable(2)
        self._base = frozenset(sys.modules)
        if _kernel.settled_thread_count() != 1:
            self._why_unsafe = why_threads("the runtime")
        _stdio.flush()

    def handle(self, message: object, fds: list[int]) -> None:
        """Execute a request of the supervisor; may return in another process than the caller's."""
        match message:
            case Branch():
                self._branch(fds[0])
            case Preload():
                self._preload(message)
            case Fork():
                self._fork(message, fds)
            case _:
                raise AssertionError(f"unknown request {message!r}")

    def _branch(self, fd: int) -> None:
        _reap()
        if _kernel.fork() == 0:
            self.link.close()
            self.link = Link(socket.socket(fileno=fd))
            self._adopt_supervisor()
        else:
            os.close(fd)

    # Importing.

    def _preload(self, request: Preload) -> None:
        if self._is_stale():
            self.link.send(Stale())
            self.link.flush_blocking()
            os._exit(0)
        denied: dict[str, str] = {}
        enter(request.world)
        installed = [module for module in request.modules if _is_from_package(module)]
        if self._import(installed, request, denied) and self._cache_inlet is not None:
            self._retain(self._cache_inlet, request.world, installed)
        self._import([name for name in request.modules if name not in installed], request, denied)
        gc.freeze()
        self.link.send(Preloaded(denied))
        self.link.flush_blocking()

    def _import(self, modules: Sequence[str], request: Preload, denied: dict[str, str]) -> bool:
        """Import modules; return whether this process now holds more. `denied` gets the reasons."""
        has_grown = False
        for module in modules:
            if module in self._tried or module in request.denied or module in sys.modules:
                continue
            verdict = self._why_unsafe or self._try(module)
            if verdict == _FAILED:
                continue  # The process that needs the module raises a better error.
            if verdict == _SAFE:
                has_grown = True
            else:
                denied[module] = verdict
            self._tried.add(module)
        self._has_grown |= has_grown
        return has_grown

    def _retain(self, cache_inlet: int, world: World, modules: Sequence[str]) -> None:
        """Leave a copy of this process with the worker while it holds only installed packages."""
        held = frozenset(name for name in modules if name in sys.modules)
        files = (getattr(sys.modules[name], "__file__", None) for name in held)
        sources = {path: version(path) for path in files if path is not None} | self._sources
        own_socket, far_socket = message_pair()
        _stdio.flush()
        try:
            pid = _kernel.fork()
        except OSError:
            return  # The next job imports the modules itself.
        if pid == 0:
            serve_retained(own_socket, world, held, sources, self._start_supervisor)
        # The report comes first, because the supervisor kills children that it does not know.
        self.link.send(Retained(pid))
        self.link.flush_blocking()
        send_to_cache(cache_inlet, far_socket)
        own_socket.close()
        far_socket.close()

    def _try(self, module: str) -> str:
        """Import a module in a fork.

        The result is "safe" in the fork, which becomes the template, or the reason against the
        module in the parent.
        """
        _stdio.flush()
        read, write = os.pipe()
        parent = os.getpid()
        child = _kernel.fork()
        if child == 0:
            os.close(read)
            os.setsid()
            _kernel.die_with_parent(signal.SIGKILL)
            verdict = _import_safely(module)
            if verdict != _SAFE:
                os.write(write, verdict.encode())
                os._exit(0)
            self._note_sources()
            self._take_over(parent, write)
            return verdict
        os.close(write)
        verdict = _read_verdict(read)
        if verdict == _SAFE:
            os._exit(0)
        _kernel.kill_group_quietly(child, signal.SIGKILL)
        _kernel.kill_quietly(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        return verdict or f"importing it ended the interpreter: {_describe_status(status)}"

    def _take_over(self, parent: int, verdict: int) -> None:
        """Replace the parent as the template."""
        _kernel.die_with_parent(0)
        try:
            os.write(verdict, _SAFE.encode())
        except BrokenPipeError:
            os._exit(0)  # The parent was killed.
        os.close(verdict)
        _kernel.wait_until_orphaned(parent)
        _kernel.die_with_parent(signal.SIGKILL)
        if os.getppid() != self._supervisor:
            os._exit(0)

    def _note_sources(self) -> None:
        for name in frozenset(sys.modules) - self._base:
            path = getattr(sys.modules[name], "__file__", None)
            if isinstance(path, str) and not _is_installed(path):
                self._sources.setdefault(path, version(path))

    def _is_stale(self) -> bool:
        return any(version(path) != known for path, known in self._sources.items())

    # Forking.

    def _fork(self, request: Fork, fds: list[int]) -> None:
        enter(request.world)
        _stdio.flush()
        gc.freeze()
        forkers = []
        shares = _shares(len(request.processes))
        if not self._has_grown and len(shares) == 1:
            # The supervisor forks another template just as fast, so one fork fewer of a large
            # process counts.
            self._deliver(request, fds, shares[0], is_last=True)
        for share in shares:
            try:
                pid = _kernel.fork()
            except OSError as error:
                self._report_failed(request.processes[share.start : share.stop], error)
                continue
            if pid == 0:
                self._deliver(request, fds, share)
            forkers.append(pid)
        close_all(fds)
        for pid in forkers:
            os.waitpid(pid, 0)
        _reap()
        self.link.send(Forked())
        self.link.flush_blocking()

    def _deliver(
        self, request: Fork, fds: list[int], share: range, *, is_last: bool = False
    ) -> NoReturn:
        """Fork a share of a batch; runs in an intermediate process or in an exiting template."""
        try:
            _kernel.die_with_parent(signal.SIGKILL)
            go, done = os.pipe()
            inherited = ChildInheritance(self.link, self._supervisor, os.getpid(), go, self._launch)
            count = 0
            for index in share:
                process = request.processes[index]
                try:
                    pid = _kernel.fork()
                except OSError as error:
                    self._report_failed((process,), error)
                    continue
                if pid == 0:
                    os.close(done)
                    become(self._fallback(process), request.world, inherited, fds[index], fds)
                self.link.send(Started(process.slot, process.incarnation, pid))
                count += 1
            if is_last:
                self.link.send(Forked(is_last=True))
            self.link.flush_blocking()
            os.write(done, b"g" * count)
        except BaseException:
            traceback.print_exc()
            _stdio.flush()
        finally:
            os._exit(0)

    def _fallback(self, process: ProcessStart) -> ProcessStart:
        """Execute a fresh interpreter if a fork of this one is unsafe or holds too many modules."""
        is_fit = self._why_unsafe is None and (self._is_blank or process.is_warm)
        if is_fit or process.argv is not None:
            return process
        command = BootstrapCommand.default(self._launch)
        argv = (command.program, command.program, *command.args)
        return ProcessStart(
            process.slot, process.incarnation, process.name, process.entry, process.env, argv,
            True, process.cpus, process.memory_nodes,
            unresponsive_timeout_s=process.unresponsive_timeout_s,
        )  # fmt: skip

    def _report_failed(self, processes: tuple[ProcessStart, ...], error: OSError) -> None:
        for process in processes:
            why = f"cannot fork: {error.strerror}"
            self.link.send(Failed(process.slot, process.incarnation, None, why))


def why_threads(what: str) -> str:
    """Return the reason why a process with more than one thread must not be forked."""
    return f"importing {what} starts threads, which a fork would lose"


def enter(world: World) -> None:
    """Adopt the environment, paths, arguments and working directory of the controller."""
    if dict(os.environ) != world.env:
        apply_changes(dict.fromkeys(os.environ.keys() - world.env.keys()))
        apply_changes(world.env)
    sys.path[:] = world.path
    sys.argv[:] = [world.argv0]
    importlib.invalidate_caches()
    with contextlib.suppress(OSError):  # The directory was removed.
        os.chdir(world.cwd)


def _import_safely(module: str) -> str:
    """Import a module and return "safe", "failed", or the reason why it is not safe to fork."""
    files = _kernel.open_files()
    try:
        importlib.import_module(module)
    except BaseException:
        return _FAILED
    verdict = _SAFE
    if _kernel.settled_thread_count() != 1:
        verdict = why_threads("it")
    elif _kernel.has_children():
        verdict = "importing it starts a process"
    else:
        for fd, target in _kernel.open_files().items():
            if files.get(fd) != target and _kernel.is_unshareable(target):
                verdict = f"importing it opens {target}"
    _reset_signals()
    _stdio.flush()
    return verdict


def _reset_signals() -> None:
    """Undo changes of imports to signals, so that processes start with default handling."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _is_from_package(module: str) -> bool:
    """Return whether a module is the interpreter's or an installed package's; imports nothing."""
    try:
        found = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return False
    origin = None if found is None else found.origin
    return origin is not None and (origin in ("built-in", "frozen") or _is_installed(origin))


def _read_verdict(read: int) -> str:
    poll = select.poll()
    poll.register(read, select.POLLIN)
    try:
        if not poll.poll(_IMPORT_LIMIT_S * 1000):
            return f"importing it takes longer than {_IMPORT_LIMIT_S:.0f} s"
        return os.read(read, 4096).decode()
    finally:
        os.close(read)


def _describe_status(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal_name(os.WTERMSIG(status))
    return f"status {os.WEXITSTATUS(status)}"


def _reap() -> None:
    """Reap forks that have exited."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _shares(count: int) -> list[range]:
    """Split a batch over intermediate processes, which fork in parallel on multiple processors."""
    cpus = len(os.sched_getaffinity(0))
    forkers = max(1, min(_FORKER_COUNT_MAX, cpus // 2, count // _FORKS_PER_FORKER_MIN))
    bounds = [count * index // forkers for index in range(forkers + 1)]
    return [range(*pair) for pair in itertools.pairwise(bounds)]


def _is_installed(path: str) -> bool:
    """Return whether a module's file belongs to the interpreter or to an installed package."""
    parts = path.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    return path.startswith(os.path.dirname(os.__file__) + os.sep)
