"""Messages between the controller, the process supervisor and the templates of a host."""

from collections.abc import Mapping
from typing import NamedTuple

# Shells change these variables constantly, and pytest the last one with each test. Modules do not
# read them.
_VOLATILE_VARIABLES = frozenset({"_", "OLDPWD", "PWD", "SHLVL", "PYTEST_CURRENT_TEST"})

# Large enough for the environment and path of a program. If they do not fit, the job starts without
# a retained template.
SUPERVISOR_REQUEST_LEN_MAX = 128 << 10

WorldKey = tuple[frozenset[tuple[str, str]], tuple[str, ...], str, str]


class World(NamedTuple):
    """Execution environment of a process, copied from the controller at the time of the spawn."""

    env: Mapping[str, str]
    path: tuple[str, ...]
    cwd: str
    argv0: str

    @property
    def key(self) -> WorldKey:
        """The part of the environment that a module may have seen while it was imported."""
        env = frozenset((k, v) for k, v in self.env.items() if k not in _VOLATILE_VARIABLES)
        return (env, self.path, self.cwd, self.argv0)


class ProcessStart(NamedTuple):
    """A process to start; the write end of its log pipe travels with the message."""

    slot: int
    incarnation: int
    name: str
    entry: bytes
    env: Mapping[str, str | None]
    """Changes to the environment of `World`; None removes a variable."""
    argv: tuple[str, ...] | None = None
    """Program, name and arguments to execute; None to run in a fork of a template."""
    inherits_env: bool = True
    """Whether `argv` starts with the environment of `World` or with an empty one."""
    cpus: frozenset[int] | None = None
    memory_nodes: frozenset[int] | None = None
    thread_limit: int | None = None
    """Number of threads of numerical libraries; None for their default."""
    is_warm: bool = False
    """Whether it may be forked from a template that holds user modules."""
    unresponsive_timeout_s: float = 60.0
    """Seconds that it may be stopped before it is killed."""
    memory_limit_bytes: int | None = None
    """Bytes of memory at which it is killed, together with its descendants; None for no limit."""


class Spawn(NamedTuple):
    """Controller to supervisor: start processes, from a template with `preload` if allowed."""

    world: World
    processes: tuple[ProcessStart, ...]
    preload: tuple[str, ...]


class Kill(NamedTuple):
    """Controller to supervisor: send a signal to a process if it still has this incarnation."""

    slot: int
    incarnation: int
    signal: int


class End(NamedTuple):
    """Controller to supervisor: end all processes, kill them after `grace_s`, then exit."""

    grace_s: float


class Branch:
    """Supervisor to template: fork another template that uses the attached descriptor."""

    __slots__ = ()


class Preload(NamedTuple):
    """Supervisor to template: import these modules, except those found unsafe before."""

    world: World
    modules: tuple[str, ...]
    denied: frozenset[str]


class Fork(NamedTuple):
    """Supervisor to template: fork these processes."""

    world: World
    processes: tuple[ProcessStart, ...]


class Preloaded(NamedTuple):
    """Template to supervisor: the import is done, except for modules newly found unsafe."""

    denied: Mapping[str, str]


class Stale:
    """Template to supervisor: the source of an imported module has changed; the template exits."""

    __slots__ = ()


class Retained(NamedTuple):
    """Template to supervisor: this fork is a retained template and must outlive the job."""

    pid: int


class Forked(NamedTuple):
    """Template to supervisor: the batch is forked, and every start was reported before."""

    is_last: bool = False
    """Whether the template has exited with it."""


class Started(NamedTuple):
    """Template to supervisor to controller: this process has started."""

    slot: int
    incarnation: int
    pid: int


class Failed(NamedTuple):
    """Template to supervisor: this process could not be started or set up."""

    slot: int
    incarnation: int
    pid: int | None
    """None for a process that could not be forked."""
    why: str


class Exited(NamedTuple):
    """Supervisor to controller: this process and its process group are gone."""

    slot: int
    incarnation: int
    pid: int | None
    """None for a process that was never started."""
    status: int
    """As from wait(2); meaningless without a pid."""
    why: str | None
    """Further details about the exit."""


class Stopped(NamedTuple):
    """Supervisor to controller: a signal has stopped this process; it runs no code."""

    slot: int
    incarnation: int
    signal: int


class Continued(NamedTuple):
    """Supervisor to controller: this process runs again."""

    slot: int
    incarnation: int


class MemoryHigh(NamedTuple):
    """Supervisor to controller: this process is close to its memory limit."""

    slot: int
    incarnation: int
    text: str
    """Its memory usage, as a sentence whose subject is `it`."""


class Denied(NamedTuple):
    """Supervisor to controller: a module is no longer preloaded, and the reason."""

    module: str
    why: str


class Warm:
    """Supervisor to controller: a template is ready for processes that are started later."""

    __slots__ = ()


class SupervisorRequest(NamedTuple):
    """Session to retained template: fork a process supervisor.

    The supervisor's link, its log and the pipe for its pid travel with the message.
    """

    world: World
    modules: frozenset[str]
    """The modules that its processes need; a template that holds others does not fit."""
    job_dir: str
    launch: str
    denied: str
    session: int
    """The pid of the requesting session."""
