"""Commands that start a process with another interpreter or environment."""

import binascii
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence

_ENTRY = "MESH_PROC_ENTRY"
_PATH = "MESH_PROC_PATH"
# The kernel refuses a single variable of 128 KiB.
_ENTRY_LEN_MAX = 64 * 1024


class BootstrapCommand:
    """An immutable command that starts a process of a mesh.

    The program must finally run `python -m mesh_core._program.launch` with the environment that
    it was given. A wrapper such as `numactl` or a profiler may precede it.

    Args:
        program: The program to execute.
        arg0: The `argv[0]` of the program; None for its own name.
        args: Its arguments.
        env: Changes to the environment; None removes a variable.
        inherit_env: Whether the changes apply to the environment of the host or to an empty one.

    Raises:
        TypeError: `args` is a string instead of a sequence of strings.

    Example:
        >>> command = BootstrapCommand.default().with_env({"OMP_NUM_THREADS": "1"})
        >>> command.args
        ('-m', 'mesh_core._program.launch')
    """

    __slots__ = ("arg0", "args", "env", "inherit_env", "program")

    program: str
    arg0: str | None
    args: tuple[str, ...]
    env: Mapping[str, str | None]
    inherit_env: bool

    def __init__(
        self,
        program: str,
        arg0: str | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str | None] | None = None,
        inherit_env: bool = True,
    ) -> None:
        if isinstance(args, str):
            raise TypeError(f"args is the string {args!r}: pass a sequence of strings")
        values = (arg0, tuple(args), dict(env or {}), inherit_env, program)
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def default(cls, launch: str = "mesh_core._program.launch") -> "BootstrapCommand":
        """Return the command that starts a process with this interpreter.

        Args:
            launch: The module that runs a process.
        """
        return cls(sys.executable, args=("-m", launch))

    def with_env(self, changes: Mapping[str, str | None]) -> "BootstrapCommand":
        """Return the same command with further changes to the environment.

        Args:
            changes: New values by name; None removes the variable.
        """
        env = {**self.env, **changes}
        return BootstrapCommand(self.program, self.arg0, self.args, env, self.inherit_env)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} cannot be set: create another BootstrapCommand")

    def _key(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BootstrapCommand) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.program, self.arg0, self.args, self.inherit_env))

    def __reduce__(self) -> tuple[object, ...]:
        return BootstrapCommand, (
            self.program,
            self.arg0,
            self.args,
            self.env,
            self.inherit_env,
        )

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in sorted(self.__slots__))
        return f"BootstrapCommand({fields})"


def default_bootstrap_cmd() -> BootstrapCommand:
    """Return the command that starts a process with this interpreter."""
    return BootstrapCommand.default()


def entry_environment(entry: bytes, path: Sequence[str]) -> dict[str, str]:
    """Return the variables that pass a process's entry to a program about to be executed.

    An entry too long for a variable is passed through an inheritable descriptor.
    """
    own = [item for item in path if not _belongs_to_interpreter(item)]
    if len(entry) <= _ENTRY_LEN_MAX:
        carried = binascii.b2a_base64(entry, newline=False).decode("ascii")
    else:
        fd = os.memfd_create("mesh-entry", 0)
        with open(fd, "wb", closefd=False) as file:
            file.write(entry)
        os.lseek(fd, 0, os.SEEK_SET)
        carried = f"fd:{fd}"
    return {_ENTRY: carried, _PATH: os.pathsep.join(own)}


def take_entry(environ: MutableMapping[str, str] = os.environ) -> bytes | None:
    """Remove the entry from the environment, and add the controller's paths to `sys.path`.

    Returns:
        The bytes for `mesh_core._program.launch.main`; None if this process was not started by a
        mesh.
    """
    carried = environ.pop(_ENTRY, None)
    for item in environ.pop(_PATH, "").split(os.pathsep):
        if item and item not in sys.path:
            sys.path.append(item)
    if carried is None:
        return None
    if not carried.startswith("fd:"):
        return binascii.a2b_base64(carried)
    with open(int(carried[3:]), "rb") as file:
        return file.read()


def _belongs_to_interpreter(item: str) -> bool:
    """Return whether another interpreter has an equivalent of this entry of `sys.path`."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    return os.path.basename(item) in ("site-packages", "dist-packages") or any(
        item == prefix or item.startswith(prefix + os.sep) for prefix in prefixes
    )
