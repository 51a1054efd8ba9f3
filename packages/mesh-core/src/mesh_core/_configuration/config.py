"""Settings: one typed object made of layers, of which the program's own words come last and win.

From the weakest to the strongest:

1. the defaults,
2. the `[core]` table of the file that `MESH_CONFIG` names,
3. the environment (`MESH_MAILBOX_LEN_MAX=100`),
4. in a process that Mesh started: what was in force where it was spawned,
5. `configure(...)`, for the whole process,
6. `with configured(...)`, for what runs inside: this thread or task, and the tasks it starts,
7. what a call says of itself (`mesh.step.options(timeout=2)`), which is not kept here.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from contextvars import ContextVar

from mesh_core._configuration.settings import PEER_NAMES, SETTINGS
from mesh_core._errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextvars import Token
    from pathlib import Path
    from typing import Any, Literal, Self, Unpack

    from mesh_core._configuration.settings import Settings

__all__ = [
    "Config",
    "clear_runtime_config",
    "configure",
    "configured",
    "effective",
    "get_global_config",
    "get_runtime_config",
    "inherit",
]

_FILE_VARIABLE = "MESH_CONFIG"
_PREFIX = "MESH_"
_TABLE = "core"


class Config:
    """The settings in force, as attributes; never changes.

    `dict(config)` and `config["mailbox_len_max"]` work too.
    """

    __slots__ = tuple(SETTINGS)

    if TYPE_CHECKING:
        attach_timeout_s: float
        call_timeout_s: float | None
        cast_fanout: int
        cleanup_timeout_s: float
        deadlock_probe_s: float
        event_ring_len_max: int
        failure_exit_grace_s: float
        failure_grace_s: float
        frame_len_max: int
        heartbeat_s: float
        host_lease_s: float
        link_outbox_bytes_max: int
        log_dir: Path | None
        log_forward: bool
        log_group_window_s: float
        log_prefix: bool
        log_tail_lines: int
        mailbox_len_max: int
        preload: tuple[str, ...] | None
        process_start: Literal["fork", "exec"]
        segment_pool_bytes_max: int
        segment_threshold_bytes: int
        spawn_timeout_s: float
        stop_grace_s: float
        unresponsive_timeout_s: float

    def __init__(self, **settings: Unpack[Settings]) -> None:
        """Takes the defaults for what is not given.

        Raises:
            ConfigError: A setting is unknown, or a value is not one that it takes.
        """
        given = _read(settings)
        for name, setting in SETTINGS.items():
            object.__setattr__(self, name, given.get(name, setting.default))

    def as_mapping(self) -> dict[str, Any]:
        """Gives the settings as plain data, for `from_mapping` in another process."""
        mapping = dict(self)
        if self.log_dir is not None:
            mapping["log_dir"] = str(self.log_dir)
        return mapping

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Makes the settings again that `as_mapping` gave.

        Raises:
            ConfigError: A setting is unknown, or a value is not one that it takes.
        """
        return cls(**mapping)

    def keys(self) -> Iterator[str]:
        """Gives the names of all settings."""
        return iter(SETTINGS)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in SETTINGS)

    def __getitem__(self, name: str) -> Any:
        if name not in SETTINGS:
            raise KeyError(name)
        return getattr(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} cannot be set on a Config: use configure() or configured()")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} cannot be deleted from a Config")

    def __eq__(self, other: object) -> bool:
        return dict(self) == dict(other) if isinstance(other, Config) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(value for _, value in self))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_mapping, (self.as_mapping(),)

    def __repr__(self) -> str:
        changed = (f"{name}={value!r}" for name, value in self if value != SETTINGS[name].default)
        return f"Config({', '.join(changed)})"


def effective() -> Config:
    """Gives the settings in force here.

    Raises:
        ConfigError: The file or the environment, which are read on first use, say what cannot be.
    """
    scope = _scope.get()
    if scope is not None:
        return scope.config()
    return _layers.config or _layers.merge()


def configure(**settings: Unpack[Settings]) -> None:
    """Sets settings for the whole process, over the file and the environment.

    Args:
        settings: Any settings, by name.

    Raises:
        ConfigError: A setting is unknown, or a value is not one that it takes; nothing is set then.
    """
    _layers.set_runtime(_read(settings))


class configured:
    """Sets settings for a `with` block, over all that `configure` set.

    Holds for this thread or task and for the tasks that it starts, and disturbs no other.
    Processes that are spawned inside begin with these settings.
    """

    __slots__ = ("_settings", "_tokens")

    def __init__(self, **settings: Unpack[Settings]) -> None:
        """Takes any settings, by name.

        Raises:
            ConfigError: A setting is unknown, or a value is not one that it takes.
        """
        self._settings = _read(settings)
        self._tokens: list[Token[_Scope | None]] = []

    def __enter__(self) -> Config:
        outer = _scope.get()
        scope = _Scope({**(outer.settings if outer else {}), **self._settings})
        config = scope.config()
        self._tokens.append(_scope.set(scope))
        return config

    def __exit__(self, *_: object) -> None:
        _scope.reset(self._tokens.pop())


def get_global_config() -> dict[str, Any]:
    """Gives every setting in force here, by name."""
    return dict(effective())


def get_runtime_config() -> dict[str, Any]:
    """Gives what `configure` has set in this process, and nothing else."""
    return dict(_layers.runtime)


def clear_runtime_config() -> None:
    """Undoes every `configure`, and reads the file and the environment again."""
    _layers.clear()


def inherit(mapping: Mapping[str, Any]) -> None:
    """Takes over, in a new process, what was in force where it was spawned.

    That includes the spawning process's file and environment, so this process reads neither.

    Args:
        mapping: What `Config.as_mapping` gave there.

    Raises:
        ConfigError: A setting is unknown, or a value is not one that it takes.
    """
    _layers.set_inherited(_read(mapping))
    _scope.set(None)


def check(mapping: Mapping[str, Any]) -> None:
    """Says what would be wrong with `inherit`.

    Args:
        mapping: What `Config.as_mapping` gave somewhere.

    Raises:
        ConfigError: A setting is unknown, or a value is not one that it takes.
    """
    _read(mapping)


class _Layers:
    """The layers that hold for the whole process, and what they come to.

    Attributes:
        config: What they come to; None when that must be worked out anew.
        generation: Counts the changes, for those who keep what they worked out.
        runtime: What `configure` set.
    """

    def __init__(self) -> None:
        self.config: Config | None = None
        self.generation = 0
        self.runtime: dict[str, Any] = {}
        self._outside: dict[str, Any] | None = None
        self._inherited: dict[str, Any] | None = None
        self._lock = allocate_lock()

    def merge(self, over: Mapping[str, Any] | None = None) -> Config:
        """Works out what the layers come to, with one more layer over them."""
        if self._inherited is None and self._outside is None:
            self._outside = {**_read_file(), **_read_environment()}
        below = self._outside if self._inherited is None else self._inherited
        settings: Any = {**(below or {}), **self.runtime, **(over or {})}
        config = Config(**settings)
        if over is None:
            self.config = config
        return config

    def set_runtime(self, settings: dict[str, Any]) -> None:
        """Adds to what `configure` set before."""
        with self._lock:
            self.runtime = {**self.runtime, **settings}
            self._changed()

    def set_inherited(self, settings: dict[str, Any]) -> None:
        """Starts anew from the settings of another process."""
        self._lock = allocate_lock()  # the fork may have left it taken
        self._inherited = settings
        self.runtime = {}
        self._changed()

    def clear(self) -> None:
        """Forgets what `configure` set and what was read."""
        with self._lock:
            self.runtime = {}
            self._outside = None
            self._changed()

    def _changed(self) -> None:
        self.generation += 1
        self.config = None


class _Scope:
    """What the `configured` blocks around a piece of code set, and what that comes to."""

    __slots__ = ("_config", "_generation", "settings")

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self._generation = -1
        self._config: Config | None = None

    def config(self) -> Config:
        """Gives the settings inside, working them out anew after a `configure`."""
        if self._config is None or self._generation != _layers.generation:
            self._generation = _layers.generation
            self._config = _layers.merge(self.settings)
        return self._config


def _read(given: Mapping[str, Any], origin: str = "", *, is_text: bool = False) -> dict[str, Any]:
    """Checks names and values, and gives each value in the form in which it is kept."""
    settings: dict[str, Any] = {}
    for given_name, value in given.items():
        name = PEER_NAMES.get(given_name, given_name)
        setting = SETTINGS.get(name)
        if setting is None:
            raise ConfigError(f"unknown setting {given_name!r}{origin}: {_suggest(given_name)}")
        try:
            settings[name] = setting.kind.parse(value) if is_text else setting.kind.read(value)
        except (ValueError, TypeError, OverflowError):
            allowed = setting.kind.allowed
            raise ConfigError(
                f"{given_name} cannot be {value!r}{origin}: it takes {allowed}"
            ) from None
    return settings


def _suggest(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, [*SETTINGS, *PEER_NAMES], n=3, cutoff=0.6)
    if not near:
        return f"the settings are {', '.join(SETTINGS)}"
    return f"did you mean {' or '.join(dict.fromkeys(PEER_NAMES.get(one, one) for one in near))}"


def _read_environment() -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in SETTINGS:
        variable = _PREFIX + name.upper()
        text = os.environ.get(variable)
        if text is not None:
            settings |= _read({name: text.strip()}, f" (from {variable})", is_text=True)
    _warn_of_misspelt()
    return settings


def _warn_of_misspelt() -> None:
    """Warns of variables that look like a setting; others may be anybody's."""
    known = {_PREFIX + name.upper() for name in SETTINGS} | {_FILE_VARIABLE}
    others = [name for name in os.environ if name.startswith(_PREFIX) and name not in known]
    if not others:
        return
    from difflib import get_close_matches
    from warnings import warn

    for variable in others:
        near = get_close_matches(variable, known, n=1, cutoff=0.85)
        if near:
            warn(f"{variable} is no setting: did you mean {near[0]}", stacklevel=2)


def _read_file() -> dict[str, Any]:
    path = os.environ.get(_FILE_VARIABLE)
    if not path:
        return {}
    import tomllib

    try:
        with open(path, "rb") as file:
            tables = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"{_FILE_VARIABLE} names {path!r}, which cannot be read ({error}): "
            "name a TOML file, or unset it"
        ) from error
    loose = [name for name, value in tables.items() if not isinstance(value, dict)]
    if loose:
        raise ConfigError(f"{loose[0]!r} in {path!r} is in no table: put it below [{_TABLE}]")
    return _read(tables.get(_TABLE, {}), f" (in {path!r})")


_layers = _Layers()
_scope: ContextVar[_Scope | None] = ContextVar("mesh_settings", default=None)
