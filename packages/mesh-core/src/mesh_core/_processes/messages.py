"""What the controller, the warden and the templates of a host tell each other."""

from collections.abc import Mapping
from dataclasses import dataclass

# Shells set these as they go; modules do not look at them.
_VOLATILE_VARIABLES = frozenset({"_", "OLDPWD", "PWD", "SHLVL"})

# Environment and path of a program fit; where they do not, the job begins without a seed.
SPROUT_LEN_MAX = 128 << 10

WorldKey = tuple[frozenset[tuple[str, str]], tuple[str, ...], str, str]


@dataclass(frozen=True, slots=True)
class World:
    """What a process sees around it: the same as the controller's at the time of the spawn."""

    env: Mapping[str, str]
    path: tuple[str, ...]
    cwd: str
    argv0: str

    @property
    def key(self) -> WorldKey:
        """What a module may have seen while it was imported."""
        env = frozenset((k, v) for k, v in self.env.items() if k not in _VOLATILE_VARIABLES)
        return (env, self.path, self.cwd, self.argv0)


@dataclass(frozen=True, slots=True)
class Birth:
    """One process to start; the write end of its log pipe travels with the message."""

    slot: int
    incarnation: int
    name: str
    entry: bytes
    env: Mapping[str, str | None]
    """Changes to the world's environment; None removes a variable."""
    argv: tuple[str, ...] | None = None
    """Program, name and arguments to execute; None to run in a fork of a template."""
    inherits_env: bool = True
    """Whether `argv` starts from the world's environment or from an empty one."""
    cpus: frozenset[int] | None = None
    memory_nodes: frozenset[int] | None = None
    is_warm: bool = False
    """Whether it may come from a template that holds the user's modules."""
    unresponsive_timeout_s: float = 60.0
    """How long it may be stopped before it is killed."""


@dataclass(frozen=True, slots=True)
class Spawn:
    """Controller to warden: start these, from a template that holds `preload` where allowed."""

    world: World
    births: tuple[Birth, ...]
    preload: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kill:
    """Controller to warden: send a signal to a process, if it still is this incarnation."""

    slot: int
    incarnation: int
    signal: int


@dataclass(frozen=True, slots=True)
class End:
    """Controller to warden: end all processes, by force after `grace_s`, then yourself."""

    grace_s: float


@dataclass(frozen=True, slots=True)
class Branch:
    """Warden to template: fork another template that listens on the descriptor sent along."""


@dataclass(frozen=True, slots=True)
class Preload:
    """Warden to template: import these, except those once found unsafe."""

    world: World
    modules: tuple[str, ...]
    denied: frozenset[str]


@dataclass(frozen=True, slots=True)
class Fork:
    """Warden to template: fork these."""

    world: World
    births: tuple[Birth, ...]


@dataclass(frozen=True, slots=True)
class Preloaded:
    """Template to warden: the import is done, except of the modules newly found unsafe."""

    denied: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Stale:
    """Template to warden: the source of a module I hold has changed, so I am leaving."""


@dataclass(frozen=True, slots=True)
class Seeded:
    """Template to warden: this fork of mine is a seed: it is to outlive us."""

    pid: int


@dataclass(frozen=True, slots=True)
class Forked:
    """Template to warden: all that could be forked is forked, and was reported before."""

    is_last: bool = False
    """Whether the template has ended with that."""


@dataclass(frozen=True, slots=True)
class Born:
    """Template to warden to controller: this process is there."""

    slot: int
    incarnation: int
    pid: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Template to warden: this process could not start, or not become what it should."""

    slot: int
    incarnation: int
    pid: int | None
    """None for one that could not be forked."""
    why: str


@dataclass(frozen=True, slots=True)
class Exited:
    """Warden to controller: this process is gone, and so is its process group."""

    slot: int
    incarnation: int
    pid: int | None
    """None for one that was never started."""
    status: int
    """As from wait(2); meaningless without a pid."""
    why: str | None
    """What is known beyond the status."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Warden to controller: a signal has stopped this process; it runs no code."""

    slot: int
    incarnation: int
    signal: int


@dataclass(frozen=True, slots=True)
class Continued:
    """Warden to controller: this process runs again."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Denied:
    """Warden to controller: this module is not preloaded any more, for this reason."""

    module: str
    why: str


@dataclass(frozen=True, slots=True)
class Sprout:
    """Session to seed: fork a warden. Its link, its log and where to say its pid travel along."""

    world: World
    modules: frozenset[str]
    """What its processes want imported: a seed that holds others does not fit."""
    job_dir: str
    launch: str
    denied: str
    session: int
    """The pid of who asks."""
