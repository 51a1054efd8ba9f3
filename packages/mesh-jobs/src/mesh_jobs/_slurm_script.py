"""The batch script that runs the workers of all meshes, as one job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesh_core import ConfigError
from mesh_jobs._order import Order, WorkerCommand
from mesh_jobs._slurm_commands import Submission
from mesh_jobs._spec import MeshSpec

__all__ = [
    "BATCH_LOG",
    "EVENTS",
    "ended_file",
    "is_heterogeneous",
    "job_name",
    "log_folder",
    "log_name",
    "nodes_file",
    "render",
    "secret_file",
    "worker",
]

#: What the script writes into the job's folder.
EVENTS = "workers/slurm-events"
BATCH_LOG = "slurm-%j.log"

#: What each task does: it runs its worker, and notes how that ended. The trap keeps the shell there
#: when the scheduler ends the job, so that it can; the worker gets the signal itself.
_TASK = """trap told=yes TERM USR1
"$@"; status=$?
echo "$MESH_EPOCH $status" > "$MESH_WORKERS/$MESH_NAME-$SLURM_PROCID.ended"
: > "$MESH_WORKERS/slurm-$MESH_EPOCH-$SLURMD_NODENAME.ended"
# The script that waits for us may have been lost with its node: then the last of us ends the job.
while [ -z "$told" ]; do
    job=$(scontrol --oneliner show job "$SLURM_JOB_ID" 2>&1) || exit $status
    waiter=$(expr "$job" : '.* BatchHost=\\([^ ]*\\)')
    nodes=$(scontrol show hostnames "$(expr "$job" : '.* NodeList=\\([^ ]*\\)')")
    for node in $nodes; do
        [ "$node" = "$waiter" ] && continue
        [ -e "$MESH_WORKERS/slurm-$MESH_EPOCH-$node.ended" ] || exit $status
    done
    case " $(echo $nodes) " in
        *" $waiter "*) ;;
        *) scancel "$SLURM_JOB_ID"; exit $status ;;
    esac
    [ -e "$MESH_WORKERS/slurm-$MESH_EPOCH-$waiter.ended" ] && exit $status
    sleep 2
done
exit $status"""

#: What the script does around the workers. `wait` ends early when a signal comes.
_NOTE = """note() { echo "$(date +%s) $MESH_EPOCH $*" >> "$MESH_FOLDER/EVENTS"; } 2> /dev/null
trap 'note leaving the scheduler is about to end the job' USR1
trap 'note stopping the scheduler ends the job' TERM"""
_WAIT = """failed=0
for worker in $workers; do
    while :; do
        wait "$worker"; status=$?
        [ $status -gt 128 ] && kill -0 "$worker" 2> /dev/null || break
    done
    [ $status -eq 0 ] || failed=1
done
note ended all workers have ended
exit $failed"""

#: What the variable would override, for options that a script may have.
_VARIABLES = {
    "account": "SBATCH_ACCOUNT",
    "exclusive": "SBATCH_EXCLUSIVE",
    "gpus_per_node": "SBATCH_GPUS_PER_NODE",
    "mem": "SBATCH_MEM_PER_NODE",
    "partition": "SBATCH_PARTITION",
    "qos": "SBATCH_QOS",
    "time_limit": "SBATCH_TIMELIMIT",
}
_ALWAYS_OURS = (
    "SBATCH_ARRAY_INX",
    "SBATCH_JOB_NAME",
    "SBATCH_NO_KILL",
    "SBATCH_NO_REQUEUE",
    "SBATCH_OPEN_MODE",
    "SBATCH_OUTPUT",
    "SBATCH_REQUEUE",
    "SBATCH_SIGNAL",
)


@dataclass(frozen=True)
class _Resources:
    """What each node of a mesh is to have."""

    cpus: int | None
    memory: str | None
    gpus: int | None
    partition: str | None
    more: tuple[str, ...]

    def options(self) -> Iterator[str]:
        if self.partition is not None:
            yield f"--partition={self.partition}"
        if self.cpus is not None:
            yield f"--cpus-per-task={self.cpus}"
        if self.memory is not None:
            yield f"--mem={self.memory}"
        if self.gpus:
            yield f"--gpus-per-node={self.gpus}"
        yield from self.more


def render(order: Order, options: Mapping[str, Any]) -> Submission:
    """Returns the script for an order.

    Raises:
        ConfigError: A value cannot be in a script.
    """
    if is_heterogeneous(order, options):
        parts = [[mesh] for mesh in order.spec.meshes]
    else:
        parts = [list(order.spec.meshes)]
    lines = ["#!/bin/sh", *_directives(order, options, parts), "", "umask 077"]
    lines += _exports(order)
    lines += _NOTE.replace("EVENTS", EVENTS).splitlines()
    lines += [f"task={shlex.quote(_TASK)}", *options.get("setup", ()), ""]
    lines += _note_nodes(len(parts))
    offset = 0
    for place, mesh in enumerate(order.spec.meshes):
        words = _srun(order, mesh, options, place if len(parts) > 1 else None, offset)
        # The shell puts in the text of what each task does.
        command = " ".join([*words[:-1], "sh -c", '"$task"', "mesh", words[-1]])
        lines += [f"MESH_NAME={mesh.name} {command} &", 'workers="$workers $!"']
        offset += mesh.hosts
    lines += _WAIT.splitlines()
    named = [name for key, name in _VARIABLES.items() if options.get(key) is not None]
    return Submission("\n".join(lines) + "\n", [*_ALWAYS_OURS, *named])


def is_heterogeneous(order: Order, options: Mapping[str, Any]) -> bool:
    """Whether meshes ask for unlike nodes: then each is a part of its own of the job."""
    return len({_resources(mesh, options) for mesh in order.spec.meshes}) > 1


def job_name(order: Order) -> str:
    """Returns the name of the job at the scheduler: the order can be found by it."""
    return f"{order.spec.name}-{order.id}"


def log_folder(order: Order, options: Mapping[str, Any]) -> Path:
    """Returns where the output of script and workers goes."""
    given = options.get("log_dir")
    return Path(given) if given else (order.folder / "logs").absolute()


def secret_file(order: Order, mesh: str) -> Path:
    """Returns where the workers of a mesh find their secret."""
    return (order.folder / "keys" / f"worker-{mesh}.json").absolute()


def nodes_file(folder: Path, epoch: int) -> Path:
    """Returns where the script has noted which nodes it began with, part by part."""
    return folder / "workers" / f"slurm-{epoch}.nodes"


def ended_file(folder: Path, mesh: str, rank: int) -> Path:
    """Returns where a task notes how its worker has ended."""
    return folder / "workers" / f"{mesh}-{rank}.ended"


def worker(order: Order, mesh: str, options: Mapping[str, Any]) -> WorkerCommand:
    """Returns what all tasks of a mesh run."""
    return order.worker(
        mesh,
        "env:SLURM_PROCID",
        python=options.get("python_exe"),
        listen=f"tcp://*:{options.get('port', 0)}",
        advertise=options.get("advertise"),
        report=str((order.folder / "workers" / f"{mesh}-{{rank}}.json").absolute()),
        secret=str(secret_file(order, mesh)),
        epoch="env:MESH_EPOCH",
    )


def _directives(
    order: Order, options: Mapping[str, Any], parts: Sequence[Sequence[MeshSpec]]
) -> list[str]:
    logs = str(log_folder(order, options)).replace("%", "%%")
    lines = [
        _directive(f"--job-name={job_name(order)}"),
        _directive(f"--output={logs}/{BATCH_LOG}"),
        _directive("--open-mode=append"),
    ]
    if warning := options.get("warning_s"):
        # To the script alone: a worker would die of it.
        lines.append(_directive(f"--signal=B:USR1@{warning}"))
    for number, meshes in enumerate(parts):
        if number:
            lines.append("#SBATCH hetjob")
        nodes = sum(mesh.hosts for mesh in meshes)
        lines += [_directive(f"--nodes={nodes}"), _directive("--ntasks-per-node=1")]
        lines += map(_directive, _everywhere(options))
        lines += map(_directive, _resources(meshes[0], options).options())
    return lines


def _everywhere(options: Mapping[str, Any]) -> Iterator[str]:
    """Yields what each part of a heterogeneous job has to be told again."""
    # The others go on when a node is lost.
    yield "--no-kill"
    yield "--requeue" if options.get("requeue", True) else "--no-requeue"
    if options.get("exclusive", True):
        yield "--exclusive"
    if (limit := options.get("time_limit")) is not None:
        yield f"--time={limit}"
    for key in ("account", "qos"):
        if (value := options.get(key)) is not None:
            yield f"--{key}={value}"
    for word in options.get("slurm_args", ()):
        if not str(word).startswith("-"):
            raise ConfigError(
                f"slurm_args has {word!r}, which is no option: write --name=value as one word"
            )
        yield str(word)


def _resources(mesh: MeshSpec, options: Mapping[str, Any]) -> _Resources:
    def of(own: Any, key: str) -> Any:
        return options.get(key) if own is None else own

    return _Resources(
        cpus=of(mesh.cpus, "cpus_per_task"),
        memory=of(mesh.memory, "mem"),
        gpus=of(mesh.gpus, "gpus_per_node"),
        partition=of(mesh.options.get("partition"), "partition"),
        more=tuple(mesh.options.get("slurm_args", ())),
    )


def _exports(order: Order) -> list[str]:
    folder = order.folder.absolute()
    values = dict(order.worker(order.spec.meshes[0].name, 0).env)
    values |= {"MESH_FOLDER": str(folder), "MESH_WORKERS": str(folder / "workers")}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    # A user may run more beside the workers, with srun --jobid.
    return [*lines, 'export MESH_EPOCH="${SLURM_RESTART_COUNT:-0}" SLURM_OVERLAP=1']


def _note_nodes(parts: int) -> list[str]:
    if parts == 1:
        names = ['"$SLURM_JOB_NODELIST"']
    else:
        names = [f'"$SLURM_JOB_NODELIST_HET_GROUP_{number}"' for number in range(parts)]
    target = '"$MESH_WORKERS/slurm-$MESH_EPOCH.nodes"'
    return [
        f"printf '%s\\n' {' '.join(names)} > {target}",
        f"note started on {' '.join(names)}",
    ]


def _srun(
    order: Order, mesh: MeshSpec, options: Mapping[str, Any], part: int | None, offset: int
) -> list[str]:
    """Returns the words that run the workers of a mesh, the last being the worker's own."""
    logs = str(log_folder(order, options)).replace("%", "%%")
    command = worker(order, mesh.name, options)
    wanted = _resources(mesh, options)
    # One that ends, or is lost with its node, takes no other with it.
    words = ["srun", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"]
    words += [f"--nodes={mesh.hosts}", f"--ntasks={mesh.hosts}", "--ntasks-per-node=1"]
    words.append(f"--relative={offset}" if part is None else f"--het-group={part}")
    # All that the job has on the node is for the processes that the worker starts.
    words.append("--cpu-bind=none")
    if wanted.cpus is not None:
        words.append(f"--cpus-per-task={wanted.cpus}")
    if wanted.gpus:
        words.append(f"--gpus-per-node={wanted.gpus}")
    words += [f"--output={logs}/{log_name(order, options, mesh.name, '%t')}", "--open-mode=append"]
    return [*map(shlex.quote, words), shlex.join(command.argv)]


def log_name(order: Order, options: Mapping[str, Any], mesh: str, rank: int | str) -> str:
    """Returns the name of the file with the output of a worker."""
    # In a folder that the user names there may be other jobs' too.
    return (
        f"{job_name(order)}-{mesh}-{rank}.log" if options.get("log_dir") else f"{mesh}-{rank}.log"
    )


def _directive(option: str) -> str:
    if any(mark in option for mark in '\n\r"\\'):
        raise ConfigError(f"{option!r} cannot be in a batch script: use no quotes or line breaks")
    return f'#SBATCH "{option}"' if any(mark in option for mark in " '#$") else f"#SBATCH {option}"
