"""A process to start, and how it is started."""

from collections.abc import Mapping
from typing import NamedTuple

from mesh_core._processes.binding import parse_binding
from mesh_core._processes.command import BootstrapCommand
from mesh_core._processes.messages import ProcessStart, World
from mesh_core._processes.thread_limit import thread_limit

__all__ = ["ProcSpec", "changed_world", "process_start"]

# These are read when a process is executed, so a fork of a running interpreter cannot apply them.
_EXEC_TIME_PREFIXES = ("LD_", "PYTHON", "MALLOC_", "GLIBC_TUNABLES")
_UNCHANGED: Mapping[str, str | None] = {}


class ProcSpec(NamedTuple):
    """A process to start."""

    slot: int
    incarnation: int
    name: str
    """Shown in log prefixes and errors, such as `trainers{gpus: 3/8}`."""
    entry: bytes
    """Passed to `mesh_core._program.launch.main` in the process."""
    command: BootstrapCommand | None = None
    """The command to execute; None to fork from a template."""
    env: Mapping[str, str | None] = _UNCHANGED
    """Changes to the controller's environment; None removes a variable."""
    bind: Mapping[str, str] | None = None
    """Processors, memory nodes and accelerators: see
    `mesh_core._processes.binding.parse_binding`."""
    proc_count: int = 1
    """Number of processes that share the host evenly."""
    unresponsive_timeout_s: float = 60.0
    """Seconds that it may be stopped, or that its start may be delayed by a stopped supervisor."""
    memory_limit_bytes: int | None = None
    """Bytes of memory at which it is killed, together with its descendants; None for no limit."""


def changed_world(world: World, changes: Mapping[str, str | None]) -> World:
    """Return a world with other environment variables."""
    if not changes:
        return world
    env = {**world.env, **changes}
    kept = {name: content for name, content in env.items() if content is not None}
    return World(kept, world.path, world.cwd, world.argv0)


def process_start(
    spec: ProcSpec,
    world: World,
    supervisor_env: Mapping[str, str],
    is_same_env: bool,
    launch: str,
) -> ProcessStart:
    """Decide how to start a process.

    Preloaded modules have seen one environment and all processors. A process with another
    environment than its siblings, or bound to some processors, must therefore import them itself.
    No module that is preloaded has opened an accelerator.
    """
    binding = parse_binding(spec.bind)
    env = {**spec.env, **binding.device_variables}
    argv: tuple[str, ...] | None = None
    inherits_env = True
    command = spec.command
    if command is not None:
        env = {**command.env, **env}
        inherits_env = command.inherit_env
    elif _needs_exec({**world.env, **env}, supervisor_env):
        command = BootstrapCommand.default(launch)
    if command is not None:
        argv = (command.program, command.arg0 or command.program, *command.args)
    whole_env = {**world.env, **env} if inherits_env else env
    return ProcessStart(
        slot=spec.slot,
        incarnation=spec.incarnation,
        name=spec.name,
        entry=spec.entry,
        env=env,
        argv=argv,
        inherits_env=inherits_env,
        cpus=binding.cpus,
        memory_nodes=binding.memory_nodes,
        thread_limit=thread_limit(spec.proc_count, binding.cpus, whole_env),
        is_warm=command is None and not _restricts_processors(spec.bind) and is_same_env,
        unresponsive_timeout_s=spec.unresponsive_timeout_s,
        memory_limit_bytes=spec.memory_limit_bytes,
    )


def _restricts_processors(bind: Mapping[str, str] | None) -> bool:
    return bind is not None and bool(bind.keys() - {"gpus"})


def _needs_exec(env: Mapping[str, str | None], supervisor_env: Mapping[str, str]) -> bool:
    """Return whether a variable differs that only a fresh interpreter would apply."""
    names = {name for name in {*env, *supervisor_env} if name.startswith(_EXEC_TIME_PREFIXES)}
    return any(env.get(name) != supervisor_env.get(name) for name in names)
