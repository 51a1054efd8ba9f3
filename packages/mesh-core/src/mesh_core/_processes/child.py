"""The first steps of a process forked from a template, before its own program runs."""

import atexit
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from mesh_core._processes.binding import bind
from mesh_core._processes.command import entry_environment
from mesh_core._processes.link import Link, close_all
from mesh_core._processes.messages import Failed, ProcessStart, World
from mesh_core._processes.thread_limit import VARIABLE, apply_thread_limit
from mesh_core._system import kernel as _kernel
from mesh_core._system import stdio as _stdio

# The exit status of shells for a program that could not be executed.
_EXIT_CANNOT_START = 127


class ChildInheritance(NamedTuple):
    """The resources that a process inherits from its template."""

    link: Link
    """To the supervisor; used only to report why the process could not be set up."""
    supervisor: int
    """The pid of the supervisor, its future parent."""
    forker: int
    """The pid of the intermediate process, which forks it and then exits."""
    go: int
    """A pipe that contains a byte if the intermediate process has finished its work."""
    launch: str
    """The module whose `main` runs the process."""


def become(
    process: ProcessStart, world: World, inherited: ChildInheritance, log: int, fds: Sequence[int]
) -> NoReturn:
    """Turn this freshly forked process into the one described by `process`.

    Args:
        process: The process to become.
        world: The execution environment, whose variables are already set.
        inherited: The links and pids that the process inherits from its template.
        log: The descriptor to write output to.
        fds: All descriptors of this batch of forks, including `log`; they are closed.
    """
    try:
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        close_all(fds)
        _find_parent(inherited)
        _stdio.write_pid()
        _kernel.set_title(process.name)
        bind(process.cpus, process.memory_nodes)
        if process.argv is not None:
            _execute(process, process.argv, world)
        apply_changes(process.env)
        if process.thread_limit is not None:
            apply_thread_limit(process.thread_limit)
        _reseed()
    except BaseException as error:
        why = f"{getattr(error, 'strerror', None) or error}"
        inherited.link.send(Failed(process.slot, process.incarnation, os.getpid(), why))
        inherited.link.flush_blocking()
        os._exit(_EXIT_CANNOT_START)
    inherited.link.close()
    _run(process.entry, inherited.launch)


def apply_changes(changes: Mapping[str, str | None]) -> None:
    """Change the environment; None removes a variable."""
    for name, content in changes.items():
        if content is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = content


def _find_parent(inherited: ChildInheritance) -> None:
    """Wait until the supervisor is the parent, and bind this process to its lifetime.

    The signal for the parent's death must not be requested earlier, because it would arrive when
    the intermediate process exits.
    """
    _kernel.wait_until_orphaned(inherited.forker)
    is_complete = os.read(inherited.go, 1) == b"g"
    os.close(inherited.go)
    _kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() != inherited.supervisor:
        os._exit(_EXIT_CANNOT_START)  # The supervisor has died, so the exit cannot be reported.
    if not is_complete:
        raise ChildProcessError("its template was killed while it forked")


def _execute(process: ProcessStart, argv: tuple[str, ...], world: World) -> NoReturn:
    """Replace this process by another program."""
    env = dict(world.env) if process.inherits_env else {}
    for name, content in process.env.items():
        if content is None:
            env.pop(name, None)
        else:
            env[name] = content
    if process.thread_limit is not None:
        env[VARIABLE] = str(process.thread_limit)
    env.update(entry_environment(process.entry, world.path))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    program, *arguments = argv
    try:
        os.execvpe(program, arguments, env)
    except OSError as error:
        raise OSError(error.errno, f"cannot execute {program!r}: {error.strerror}") from error


def _reseed() -> None:
    """Reseed the random numbers of numpy and torch; Python's `random` reseeds itself."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        # The generators of other devices do not exist before the process uses the device.
        torch.default_generator.seed()


def _run(entry: bytes, launch: str) -> NoReturn:
    """Run the program of the process and exit without the cleanup of inherited state."""
    gc.enable()
    code = 1
    try:
        code = _exit_code(importlib.import_module(launch).main(entry))
    except SystemExit as request:
        code = _exit_code(request.code)
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)


def _leave(code: int) -> NoReturn:
    """Exit as an interpreter would, but without deallocating modules."""
    try:
        atexit._run_exitfuncs()
        _stdio.flush()
    finally:
        os._exit(code)


def _exit_code(answer: object) -> int:
    """Return the exit status that `sys.exit(answer)` would give."""
    if answer is None:
        return 0
    if isinstance(answer, int):
        return answer & 0xFF
    print(answer, file=sys.stderr)
    return 1
