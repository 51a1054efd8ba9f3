"""Configuration: a typed object that is merged from layers.

The layers, from the lowest precedence to the highest:

1. The defaults.
2. The `[core]` table of the file that `MESH_CONFIG` names.
3. Environment variables (`MESH_MAILBOX_LEN_MAX=100`).
4. In a process that Mesh started: the effective settings of the process that spawned it. They
   replace the file and the environment.
5. `configure(...)`, which applies to the whole process.
6. `with configured(...)`, which applies to the block: its thread or task, and the tasks it starts.
7. The options of a call (`mesh.step.options(timeout=2)`), which this module does not store.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from contextvars import ContextVar
from warnings import warn

from mesh_core._configuration.settings import PEER_NAMES, SETTINGS
from mesh_core._errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
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
    "read_config_table",
]

_FILE_VARIABLE = "MESH_CONFIG"
_PREFIX = "MESH_"
_TABLE = "core"


class Config:
    """The effective settings, as attributes of an immutable object.

    `dict(config)` and `config["mailbox_len_max"]` work too.
    """

    __slots__ = tuple(SETTINGS)

    if TYPE_CHECKING:
        attach_timeout_s: float
        call_timeout_s: float | None
        cast_fanout: int
        check_versions: bool
        cleanup_timeout_s: float
        deadlock_probe_s: float
        event_ring_len_max: int
        failure_exit_grace_s: float
        failure_grace_s: float
        frame_len_max: int
        full_tracebacks: bool
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
        record: tuple[str, ...] | None
        record_bytes_max: int
        record_dir: Path | None
        record_redact: tuple[str, ...] | None
        segment_pool_bytes_max: int
        segment_threshold_bytes: int
        spawn_timeout_s: float
        stop_grace_s: float
        unresponsive_timeout_s: float

    def __init__(self, **settings: Unpack[Settings]) -> None:
        """Create a configuration; settings that are not given have their defaults.

        Raises:
            ConfigError: A setting is unknown, or a value is invalid.
        """
        given = _read(settings)
        for name, setting in SETTINGS.items():
            object.__setattr__(self, name, given.get(name, setting.default))

    @staticmethod
    def current() -> Config:
        """Return the effective settings in the current context.

        Raises:
            ConfigError: The file or the environment, which are read on first use, contain an error.
        """
        return effective()

    def as_mapping(self) -> dict[str, Any]:
        """Return the settings as plain data, for `from_mapping` in another process."""
        mapping = dict(self)
        for name in ("log_dir", "record_dir"):
            if mapping[name] is not None:
                mapping[name] = str(mapping[name])
        return mapping

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Create a configuration from the result of `as_mapping`.

        Raises:
            ConfigError: A setting is unknown, or a value is invalid.
        """
        return cls(**mapping)

    def keys(self) -> Iterator[str]:
        """Return the names of all settings."""
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
    """Return the effective settings in the current context.

    Raises:
        ConfigError: The file or the environment, which are read on first use, contain an error.
    """
    scope = _scope.get()
    if scope is not None:
        return scope.config()
    return _layers.config or _layers.merge()


def configure(**settings: Unpack[Settings]) -> None:
    """Change settings for the whole process; they override the file and the environment.

    Args:
        settings: Any settings, by name.

    Raises:
        ConfigError: A setting is unknown, or a value is invalid; no setting is changed.
    """
    _layers.set_runtime(_read(settings))


class configured:
    """Overrides settings, including those set by `configure`, within a `with` block.

    The settings apply to this thread or task and to the tasks that it starts, and to no others.
    Processes that are spawned in the block start with these settings.
    """

    __slots__ = ("_settings", "_tokens")

    def __init__(self, **settings: Unpack[Settings]) -> None:
        """Accept any settings, by name.

        Raises:
            ConfigError: A setting is unknown, or a value is invalid.
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
    """Return all effective settings in the current context, by name."""
    return dict(effective())


def get_runtime_config() -> dict[str, Any]:
    """Return the settings that were changed by `configure` in this process."""
    return dict(_layers.runtime)


def clear_runtime_config() -> None:
    """Undo every `configure`, and read the file and the environment again."""
    _layers.clear()


def inherit(mapping: Mapping[str, Any]) -> None:
    """Adopt, in a new process, the effective settings of the process that spawned it.

    These include the file and the environment of the spawning process, so this process reads
    neither.

    Args:
        mapping: The result of `Config.as_mapping` in the spawning process.

    Raises:
        ConfigError: A setting is unknown, or a value is invalid.
    """
    _layers.set_inherited(_read(mapping))
    _scope.set(None)


def check(mapping: Mapping[str, Any]) -> None:
    """Validate a mapping for `inherit`.

    Args:
        mapping: The result of `Config.as_mapping`.

    Raises:
        ConfigError: A setting is unknown, or a value is invalid.
    """
    _read(mapping)


class _Layers:
    """The layers that apply to the whole process, and the merged result.

    Attributes:
        config: The merged result; None if the layers have to be merged again.
        generation: Number of changes so far, used to invalidate caches of merged results.
        runtime: The settings that `configure` set.
    """

    def __init__(self) -> None:
        self.config: Config | None = None
        self.generation = 0
        self.runtime: dict[str, Any] = {}
        self._outside: dict[str, Any] | None = None
        self._inherited: dict[str, Any] | None = None
        self._lock = allocate_lock()

    def merge(self, over: Mapping[str, Any] | None = None) -> Config:
        """Merge the layers, with an optional additional layer on top."""
        if self._inherited is None and self._outside is None:
            self._outside = {**_read_file(), **_read_environment()}
        below = self._outside if self._inherited is None else self._inherited
        settings: Any = {**(below or {}), **self.runtime, **(over or {})}
        config = Config(**settings)
        if over is None:
            self.config = config
        return config

    def set_runtime(self, settings: dict[str, Any]) -> None:
        """Add settings to the settings of earlier calls of `configure`."""
        with self._lock:
            self.runtime = {**self.runtime, **settings}
            self._changed()

    def set_inherited(self, settings: dict[str, Any]) -> None:
        """Reset the layers to the settings of another process."""
        self._lock = allocate_lock()  # the lock may have been held during the fork
        self._inherited = settings
        self.runtime = {}
        self._changed()

    def clear(self) -> None:
        """Drop the settings of `configure`, and those read from the file and the environment."""
        with self._lock:
            self.runtime = {}
            self._outside = None
            self._changed()

    def _changed(self) -> None:
        self.generation += 1
        self.config = None


class _Scope:
    """The settings of the `configured` blocks around a piece of code, and the merged result."""

    __slots__ = ("_config", "_generation", "settings")

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self._generation = -1
        self._config: Config | None = None

    def config(self) -> Config:
        """Return the settings in the block; merge them again after a `configure`."""
        if self._config is None or self._generation != _layers.generation:
            self._generation = _layers.generation
            self._config = _layers.merge(self.settings)
        return self._config


def _read(given: Mapping[str, Any], origin: str = "", *, is_text: bool = False) -> dict[str, Any]:
    """Validate names and values, and convert each value to its stored form."""
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
    near = _similar(name, [*SETTINGS, *PEER_NAMES], count_max=3, cutoff=0.6)
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
    """Warn about variables that resemble a setting; others may belong to other programs."""
    known = {_PREFIX + name.upper() for name in SETTINGS} | {_FILE_VARIABLE}
    others = [name for name in os.environ if name.startswith(_PREFIX) and name not in known]
    if not others:
        return
    for variable in others:
        near = _similar(variable, known, count_max=1, cutoff=0.85)
        if near:
            warn(f"{variable} is not a setting: did you mean {near[0]}", stacklevel=2)


def _similar(name: str, known: Iterable[str], *, count_max: int, cutoff: float) -> list[str]:
    """Return the known names that resemble a name; only wrong names need it."""
    from difflib import get_close_matches  # noqa: PLC0415

    return get_close_matches(name, known, n=count_max, cutoff=cutoff)


def read_config_table(name: str) -> tuple[dict[str, Any], str]:
    """Read a table of the file that `MESH_CONFIG` names, such as `rdma`.

    Args:
        name: The name of the table.

    Returns:
        The table, which is empty if there is no file or the file does not have it, and the path of
        the file.

    Raises:
        ConfigError: The file cannot be read, or a setting in it is outside of any table.
    """
    path = os.environ.get(_FILE_VARIABLE)
    if not path:
        return {}, ""
    # Few programs have a file, and the import takes as long as a third of this package.
    import tomllib  # noqa: PLC0415

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
        raise ConfigError(f"{loose[0]!r} in {path!r} is not in a table: move it below [{name}]")
    table: dict[str, Any] = tables.get(name, {})
    return table, path


def _read_file() -> dict[str, Any]:
    table, path = read_config_table(_TABLE)
    return _read(table, f" (in {path!r})")


_layers = _Layers()
_scope: ContextVar[_Scope | None] = ContextVar("mesh_settings", default=None)
