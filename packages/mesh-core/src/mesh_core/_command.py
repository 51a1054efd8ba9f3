"""How to start a process with another interpreter or environment."""

import base64
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

_ENTRY = "MESH_PROC_ENTRY"
_PATH = "MESH_PROC_PATH"
# The kernel refuses a single variable of 128 KiB.
_ENTRY_LEN_MAX = 64 * 1024


@dataclass(frozen=True)
class BootstrapCommand:
    """A command that starts a process of a mesh.

    Example:
        >>> command = default_bootstrap_cmd().with_env({"OMP_NUM_THREADS": "1"})
        >>> command.args
        ('-m', 'mesh_core._launch')

    The program must end up running `python -m mesh_core._launch` with the environment it was
    given: a wrapper such as `numactl` or a profiler may come before.
    """

    program: str
    arg0: str | None = None
    """The name the program is told; None for its own."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Changes to the environment; None removes a variable."""
    inherit_env: bool = True
    """Whether the changes start from the environment of the host, or from an empty one."""

    def __post_init__(self) -> None:
        if isinstance(self.args, str):
            raise TypeError(f"args is the string {self.args!r}: pass a sequence of strings")
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "env", dict(self.env))

    def with_env(self, changes: Mapping[str, str | None]) -> "BootstrapCommand":
        """Returns the same command with further changes to the environment.

        Args:
            changes: New values by name; None removes the variable.
        """
        return replace(self, env={**self.env, **changes})

    def __hash__(self) -> int:
        return hash((self.program, self.arg0, self.args, self.inherit_env))


def default_bootstrap_cmd(launch: str = "mesh_core._launch") -> BootstrapCommand:
    """Returns the command that starts a process with this interpreter.

    Args:
        launch: The module that runs a process.
    """
    return BootstrapCommand(sys.executable, args=("-m", launch))


def entry_environment(entry: bytes, path: Sequence[str]) -> dict[str, str]:
    """Returns the variables that carry a process's entry to a program about to be executed.

    An entry too long for a variable goes through an inheritable descriptor.
    """
    own = [item for item in path if not _belongs_to_interpreter(item)]
    if len(entry) <= _ENTRY_LEN_MAX:
        carried = base64.b64encode(entry).decode("ascii")
    else:
        fd = os.memfd_create("mesh-entry", 0)
        with open(fd, "wb", closefd=False) as file:
            file.write(entry)
        os.lseek(fd, 0, os.SEEK_SET)
        carried = f"fd:{fd}"
    return {_ENTRY: carried, _PATH: os.pathsep.join(own)}


def take_entry(environ: MutableMapping[str, str] = os.environ) -> bytes | None:
    """Takes the entry out of the environment, and puts the controller's paths on `sys.path`.

    Returns:
        What to hand to `mesh_core._launch.main`; None if this process was not started by a mesh.
    """
    carried = environ.pop(_ENTRY, None)
    for item in environ.pop(_PATH, "").split(os.pathsep):
        if item and item not in sys.path:
            sys.path.append(item)
    if carried is None:
        return None
    if not carried.startswith("fd:"):
        return base64.b64decode(carried)
    with open(int(carried[3:]), "rb") as file:
        return file.read()


def _belongs_to_interpreter(item: str) -> bool:
    """Tells whether another interpreter has its own in place of this entry of `sys.path`."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    return os.path.basename(item) in ("site-packages", "dist-packages") or any(
        item == prefix or item.startswith(prefix + os.sep) for prefix in prefixes
    )
