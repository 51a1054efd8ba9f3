"""The batch script that runs the workers of all meshes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mesh_core import ConfigError
from mesh_jobs._backend.allocation_request import AllocationRequest, WorkerCommand
from mesh_jobs._client.process import client_argv
from mesh_jobs._slurm.allocation import BatchJob, HostRange, SlurmAllocation
from mesh_jobs._slurm.commands import Submission

__all__ = [
    "BATCH_LOG",
    "EVENTS",
    "allocation_of",
    "directive",
    "output_directive",
    "render",
    "worker",
]

#: The files that the script writes, relative to the job's folder.
EVENTS = "workers/slurm-events"
BATCH_LOG = "slurm-%j.log"

#: The script of each task, which runs its worker and records its exit status. The trap keeps the
#: shell alive to do so when the scheduler ends the job; the worker receives the signal itself.
_TASK = """export MESH_RANK=$((MESH_FIRST + SLURM_PROCID))
exec >> "$MESH_LOGS$MESH_NAME-$MESH_RANK.log" 2>&1
trap is_stopped=yes TERM USR1
"$@"; status=$?
echo "$MESH_EPOCH $status" > "$MESH_WORKERS/$MESH_NAME-$MESH_RANK.ended"
: > "$MESH_WORKERS/slurm-$MESH_EPOCH-$SLURMD_NODENAME.ended"
# The script that waits for us may have been lost with its node: then the last of us ends the job.
while [ -z "$is_stopped" ]; do
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

#: The maximum number of steps of a batch job. Each of them is a process on its first node.
_STEPS_MAX = 128

#: Functions and traps of the script. A signal interrupts `wait`.
#:
#: `serve` runs the workers of some hosts. Its arguments are the mesh, the first rank, the number of
#: hosts, and a command. A worker that was lost with its node has not recorded that it ended.
_NOTE = """serve() {
    trap : TERM USR1
    export MESH_NAME="$1" MESH_FIRST="$2"
    after=$(($2 + $3)) rank=$2
    shift 3
    "$@"; status=$?
    while [ "$rank" -lt "$after" ]; do
        ended="$MESH_WORKERS/$MESH_NAME-$rank.ended" epoch=
        [ -e "$ended" ] && read -r epoch _ < "$ended"
        [ "$epoch" = "$MESH_EPOCH" ] || echo "$MESH_EPOCH $status" > "$ended"
        rank=$((rank + 1))
    done
    exit $status
}
note() {
    echo "$(date +%s) $MESH_EPOCH $*" >> "$MESH_FOLDER/EVENTS"
} 2> /dev/null
job_state() {
    echo "now=$(date +%Y-%m-%dT%H:%M:%S)"
    scontrol --oneliner show job "$SLURM_JOB_ID" | head -n 1 |
        grep -oE ' (JobState|EndTime|PreemptTime|Restarts|RunTime|TimeLimit)=[^ ]*'
} 2> /dev/null
trap 'note leaving $(job_state)' USR1
trap 'note stopping $(job_state)' TERM"""
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

#: With a client script, the job ends when the script exits, including the additional batch jobs of
#: meshes that have grown.
_WAIT_FOR_CLIENT = """while :; do
    wait "$client"; status=$?
    [ $status -gt 128 ] && kill -0 "$client" 2> /dev/null || break
done
note ended the client script has ended with status $status
squeue --noheader --user="$(id -u)" --format='%A %j' | while read -r id name; do
    case "$name" in
        JOB_NAME-*) scancel "$id" ;;
    esac
done
exit $status"""

#: Environment variables that take precedence over options in a script.
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
    """The resources of each node of a mesh."""

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


def render(request: AllocationRequest, options: Mapping[str, Any], job: BatchJob) -> Submission:
    """Return the script of a batch job that has no id yet.

    Raises:
        ConfigError: A value cannot be represented in a script.
    """
    is_heterogeneous = (
        len({_of_mesh(request, options, host_range.mesh) for host_range in job.host_ranges}) > 1
    )
    # Shares with different resources become separate components of a heterogeneous job.
    parts = (
        [[host_range] for host_range in job.host_ranges]
        if is_heterogeneous
        else [list(job.host_ranges)]
    )
    lines = ["#!/bin/sh", *_directives(request, options, job.name, parts), "", "umask 077"]
    lines += _exports(request, options, job)
    lines += _NOTE.replace("EVENTS", EVENTS).splitlines()
    lines += [f"task={shlex.quote(_TASK)}", *options.get("setup", ()), ""]
    lines += _note_nodes(len(parts))
    hosts_per_step = -(-len(job.places()) // _STEPS_MAX)
    offset = 0
    for place, host_range in enumerate(job.host_ranges):
        part = place if is_heterogeneous else None
        lines += _steps(request, options, host_range, hosts_per_step, part, offset)
        offset += host_range.hosts
    if request.spec.client is not None and job.number == 0:
        lines.append(f"{shlex.join(_client(request, options))} & client=$!")
        name = allocation_of(request, options).name
        lines += _WAIT_FOR_CLIENT.replace("JOB_NAME", name).splitlines()
    else:
        lines += _WAIT.splitlines()
    named = [name for key, name in _VARIABLES.items() if options.get(key) is not None]
    return Submission("\n".join(lines) + "\n", [*_ALWAYS_OURS, *named])


def allocation_of(request: AllocationRequest, options: Mapping[str, Any]) -> SlurmAllocation:
    """Return the allocation of a request, with one batch job that has no id yet."""
    meshes = {mesh.name: mesh.hosts for mesh in request.spec.meshes}
    host_ranges = tuple(HostRange(mesh, 0, hosts) for mesh, hosts in meshes.items())
    # The allocation is found by this name.
    name = f"{request.spec.name}-{request.id}"
    folder = request.folder.absolute()
    given = options.get("log_dir")
    batch_logs = given or f"{folder}/logs"
    # A folder that the user chose may contain the logs of other jobs.
    logs = f"{given}/{name}-" if given else f"{folder}/logs/"
    job = BatchJob("", name, 0, host_ranges)
    return SlurmAllocation(
        name, folder, logs, batch_logs, meshes, (job,), 1, options.get("array") or ""
    )


def worker(request: AllocationRequest, mesh: str, options: Mapping[str, Any]) -> WorkerCommand:
    """Return the command that all tasks of a mesh run."""
    folder = request.folder.absolute()
    return request.worker(
        mesh,
        "env:MESH_RANK",
        python=options.get("python"),
        listen=f"tcp://*:{options.get('port', 0)}",
        advertise=options.get("advertise"),
        report=f"{folder}/workers/{mesh}-{{rank}}.json",
        secret=f"{folder}/keys/worker-{mesh}.json",
        epoch="env:MESH_EPOCH",
    )


def _client(request: AllocationRequest, options: Mapping[str, Any]) -> list[str]:
    return client_argv(
        request,
        python=options.get("python"),
        epoch="env:MESH_EPOCH",
        log=str(allocation_of(request, options).client_log),
        # The tasks of an array share one script, which knows only the name of the array.
        context=options.get("array_of"),
    )


def _directives(
    request: AllocationRequest,
    options: Mapping[str, Any],
    name: str,
    parts: Sequence[Sequence[HostRange]],
) -> list[str]:
    lines = [
        directive(f"--job-name={name}"),
        output_directive(allocation_of(request, options)),
        directive("--open-mode=append"),
    ]
    if warning := options.get("warning_s"):
        # `B:` signals only the script, because the signal would kill a worker.
        lines.append(directive(f"--signal=B:USR1@{warning}"))
    for number, host_ranges in enumerate(parts):
        if number:
            lines.append("#SBATCH hetjob")
        nodes = sum(host_range.hosts for host_range in host_ranges)
        lines += [directive(f"--nodes={nodes}"), directive("--ntasks-per-node=1")]
        lines += map(directive, _everywhere(options))
        lines += map(directive, _of_mesh(request, options, host_ranges[0].mesh).options())
    return lines


def _everywhere(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that each component of a heterogeneous job must repeat."""
    # The remaining hosts keep running when a node is lost.
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
                f"slurm_args has {word!r}, which is not an option: write --name=value as one word"
            )
        yield str(word)


def _of_mesh(request: AllocationRequest, options: Mapping[str, Any], name: str) -> _Resources:
    mesh = request.spec.mesh(name)

    def of(own: Any, key: str) -> Any:
        return options.get(key) if own is None else own

    return _Resources(
        cpus=of(mesh.cpus, "cpus_per_task"),
        memory=of(mesh.memory, "mem"),
        gpus=of(mesh.gpus, "gpus_per_node"),
        partition=of(mesh.options.get("partition"), "partition"),
        more=tuple(mesh.options.get("slurm_args", ())),
    )


def _exports(request: AllocationRequest, options: Mapping[str, Any], job: BatchJob) -> list[str]:
    folder = request.folder.absolute()
    values = dict(worker(request, job.host_ranges[0].mesh, options).env)
    values |= {"MESH_FOLDER": str(folder), "MESH_WORKERS": f"{folder}/workers"}
    values |= {"MESH_LOGS": allocation_of(request, options).logs}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    epoch = f"$(({job.first_epoch} + ${{SLURM_RESTART_COUNT:-0}}))"
    # With SLURM_OVERLAP, users can run additional steps next to the workers, by srun --jobid.
    return [*lines, f'export MESH_EPOCH="{epoch}" SLURM_OVERLAP=1']


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


def _steps(
    request: AllocationRequest,
    options: Mapping[str, Any],
    host_range: HostRange,
    hosts_per_step: int,
    part: int | None,
    offset: int,
) -> Iterator[str]:
    """Yield the lines that run the workers of a host range.

    If a node boots again before the scheduler has detected its loss, the scheduler ends the steps
    that it was part of, with all their tasks. Steps are therefore as small as possible.
    """
    first, after = host_range.first, host_range.first + host_range.hosts
    after_full = after - host_range.hosts % hosts_per_step
    # Nodes are counted in the component of a heterogeneous job, and otherwise in the whole job.
    node = f"$((first+{(offset if part is None else 0) - first}))"
    for ranks, hosts in (
        (range(first, after_full, hosts_per_step), hosts_per_step),
        (range(after_full, after, hosts_per_step), after - after_full),
    ):
        if ranks:
            step = f"{_srun(request, options, host_range.mesh, hosts, part)} --relative={node}"
            task = _task(request, options, host_range.mesh)
            yield f"for first in {' '.join(map(str, ranks))}; do"
            yield f"    serve {host_range.mesh} $first {hosts} {step} {task} &"
            yield '    workers="$workers $!"'
            yield "done"


def _srun(
    request: AllocationRequest, options: Mapping[str, Any], mesh: str, hosts: int, part: int | None
) -> str:
    """Return the command that creates a step on some hosts of a mesh, without its program."""
    wanted = _of_mesh(request, options, mesh)
    # The exit or loss of one task must not terminate the others.
    words = ["srun", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"]
    words += [f"--nodes={hosts}", f"--ntasks={hosts}", "--ntasks-per-node=1"]
    if part is not None:
        words.append(f"--het-group={part}")
    # The processes that the worker starts may use all resources of the job on the node.
    words.append("--cpu-bind=none")
    if wanted.cpus is not None:
        words.append(f"--cpus-per-task={wanted.cpus}")
    if wanted.gpus:
        words.append(f"--gpus-per-node={wanted.gpus}")
    return shlex.join(words)


def _task(request: AllocationRequest, options: Mapping[str, Any], mesh: str) -> str:
    """Return the program of each task of a mesh."""
    # The shell expands the script of the task.
    return f'sh -c "$task" mesh {shlex.join(worker(request, mesh, options).argv)}'


def output_directive(allocation: SlurmAllocation) -> str:
    """Return the directive that specifies the output file of the script."""
    logs = allocation.batch_logs.replace("%", "%%")
    return directive(f"--output={logs}/{BATCH_LOG}")


def directive(option: str) -> str:
    """Return the line of a script that passes an option to `sbatch`.

    Raises:
        ConfigError: The option cannot be represented in a script.
    """
    if any(mark in option for mark in '\n\r"\\'):
        raise ConfigError(f"{option!r} cannot be in a batch script: use no quotes or line breaks")
    return f'#SBATCH "{option}"' if any(mark in option for mark in " '#$") else f"#SBATCH {option}"
