"""Requests for stacks to all hosts, and their results."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from mesh_core import MeshError
from mesh_telemetry._errors import PySpyError, StorageError, TelemetryError, cause_of
from mesh_telemetry._query.coverage import HostFailure
from mesh_telemetry._stacks.dump import ProcFailure, StackDump
from mesh_telemetry._stacks.flame_graph import FlameGraph
from mesh_telemetry._stacks.flame_stacks import folded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from os import PathLike
    from typing import Any

    from mesh_core import Future
    from mesh_telemetry._hosts.coordinator import Coordinator
    from mesh_telemetry._hosts.host_handle import HostHandle
    from mesh_telemetry._hosts.host_rows import HostRows
    from mesh_telemetry._query.deadline import Cancellation
    from mesh_telemetry._stacks.dump import DumpOptions
    from mesh_telemetry._stacks.flame_graph import FlameOptions

    SendRequest = Callable[[HostRows], Future[Any]]

__all__ = ["Outcome", "dump_of", "flame_graph_of", "outcomes_of", "store_dump_of"]

# Hosts enforce the timeout; this is the additional time for hosts that do not respond.
_MORE_S = 10.0
_RECORDING_MORE_S = 40.0
_HOSTS_S = 10.0
_CAUSES_MAX = 3


class Outcome(NamedTuple):
    """The result of a request to a host."""

    value: Any
    error: str | None


def dump_of(
    coordinator: Coordinator, procs: Sequence[str] | None, options: DumpOptions, timeout_s: float
) -> StackDump:
    """Take the stacks of some processes, or of all, on all hosts.

    Raises:
        PySpyError: No stacks could be taken.
    """
    hosts = coordinator.hosts.call_one().get(_HOSTS_S)
    dump_id = uuid.uuid4().hex
    named = None if procs is None else _by_host(procs)
    requests = [host for host in hosts if named is None or str(host.number) in named]

    def request(host: HostHandle) -> SendRequest:
        wanted = None if named is None else frozenset(named[str(host.number)])
        return lambda rows: rows.dump_stacks.call_one(dump_id, wanted, options, timeout_s)

    outcomes = outcomes_of([(host, request(host)) for host in requests], timeout_s + _MORE_S)
    done: list[str] = []
    failed: list[ProcFailure] = []
    hosts_failed: list[HostFailure] = []
    for host, outcome in zip(requests, outcomes, strict=True):
        if outcome.error is not None:
            hosts_failed.append(HostFailure(f"{host.name}/{host.number}", outcome.error))
        else:
            done += outcome.value.procs
            failed += outcome.value.failed
    known = {str(host.number) for host in hosts}
    for number in sorted((named or {}).keys() - known):
        failed += [ProcFailure("", proc, "its host is unknown") for proc in (named or {})[number]]
    if not done:
        _raise_if_none(failed, hosts_failed)
    return StackDump(dump_id, tuple(done), tuple(failed), tuple(hosts_failed))


def flame_graph_of(
    coordinator: Coordinator,
    procs: Sequence[str],
    options: FlameOptions,
    path: str | PathLike[str] | None,
    cancellation: Cancellation | None = None,
) -> FlameGraph:
    """Sample processes concurrently.

    Args:
        coordinator: The actor that knows the hosts.
        procs: The processes, such as `0.3`.
        options: The options of the recording.
        path: Where to write the flame graph or graphs.
        cancellation: Cancels the recording; py-spy is then stopped on all hosts.

    Raises:
        PySpyError: None of the processes could be sampled.
    """
    hosts = {str(host.number): host for host in coordinator.hosts.call_one().get(_HOSTS_S)}
    failed = []
    requests = []
    for proc in dict.fromkeys(procs):
        host = hosts.get(proc.partition(".")[0])
        if host is None:
            failed.append(ProcFailure("", proc, "its host is unknown"))
        else:
            requests.append((proc, host))

    def request(proc: str) -> SendRequest:
        return lambda rows: rows.record_stacks.call_one(proc, options)

    limit_s = options.seconds + _RECORDING_MORE_S
    outcomes = outcomes_of(
        [(host, request(proc)) for proc, host in requests], limit_s, cancellation
    )
    rows: list[tuple[str, str, int]] = []
    svgs: dict[str, str] = {}
    for (proc, host), outcome in zip(requests, outcomes, strict=True):
        cause = outcome.error
        if cause is None:
            stacks = folded(outcome.value)
            svgs[proc] = outcome.value
            rows += [(proc, stack, samples) for stack, samples in stacks]
            continue
        failed.append(ProcFailure(host.name, proc, cause))
    if not svgs:
        _raise_if_none(failed, [])
    table = pa.table(
        {
            "proc": pa.array([proc for proc, _, _ in rows], pa.string()),
            "stack": pa.array([stack for _, stack, _ in rows], pa.string()),
            "samples": pa.array([samples for _, _, samples in rows], pa.int64()),
        }
    )
    write_graphs(svgs, path, ".svg")
    return FlameGraph(table, svgs, tuple(failed))


def store_dump_of(
    coordinator: Coordinator, dump_id: str, proc: str, dump_json: str, timeout_s: float
) -> None:
    """Store a dump on the host of its process, or on the host of the program if that is unknown.

    Raises:
        TelemetryError: The text is not a dump, or the host does not respond.
        StorageError: The space is insufficient.
    """
    deadline = time.monotonic() + timeout_s
    hosts = coordinator.hosts.call_one().get(timeout_s)
    at, _, _ = proc.partition(".")
    host = next((one for one in hosts if str(one.number) == at), hosts[0])
    if host.rows is None:
        raise TelemetryError(f"host {host.name} did not reply ({host.error}): try again later")
    storing = host.rows.store_pyspy_dump.call_one(dump_id, proc, dump_json)
    try:
        storing.get(max(deadline - time.monotonic(), 0.0))
    except TimeoutError:
        storing.cancel()
        raise TelemetryError(
            f"host {host.name} did not reply within {timeout_s:g} s: increase the timeout"
        ) from None
    except StorageError as error:
        raise StorageError(cause_of(error)) from None
    except MeshError as error:
        raise TelemetryError(cause_of(error)) from None


def outcomes_of(
    requests: Sequence[tuple[HostHandle, SendRequest]],
    timeout_s: float,
    cancellation: Cancellation | None = None,
) -> list[Outcome]:
    """Send requests to hosts concurrently; they are cancelled if the caller is interrupted."""
    deadline = time.monotonic() + timeout_s
    futures = [
        (host, None if host.rows is None else request(host.rows)) for host, request in requests
    ]

    def cancel() -> None:
        for _, future in futures:
            if future is not None:
                future.cancel()

    try:
        if cancellation is not None:
            cancellation.call(cancel)
        return [_outcome(host, future, deadline) for host, future in futures]
    finally:
        cancel()


def _outcome(host: HostHandle, future: Future[Any] | None, deadline: float) -> Outcome:
    if future is None:
        return Outcome(None, host.error or "it is restarting")
    try:
        return Outcome(future.get(max(deadline - time.monotonic(), 0.0)), None)
    except TimeoutError:
        return Outcome(None, "it did not reply in time")
    except MeshError as error:
        return Outcome(None, cause_of(error))


def _by_host(procs: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for proc in procs:
        found.setdefault(proc.partition(".")[0], []).append(proc)
    return found


def _raise_if_none(failed: Sequence[ProcFailure], hosts_failed: Sequence[HostFailure]) -> None:
    """Raise an error that names the causes, if there are any; called when no stacks were taken."""
    causes = [f"host {one.host}: {one.cause}" for one in hosts_failed]
    causes += [f"process {one.proc}: {one.cause}" for one in failed]
    if causes:
        more = len(causes) - _CAUSES_MAX
        rest = f"; and {more} more" if more > 0 else ""
        raise PySpyError(f"no stacks were read: {'; '.join(causes[:_CAUSES_MAX])}{rest}")


def write_graphs(graphs: Mapping[str, str], path: str | PathLike[str] | None, suffix: str) -> None:
    """Write a flame graph to a file, or several flame graphs to files of a directory.

    Args:
        graphs: The flame graph of each process by its name.
        path: The file or directory; nothing is written if it is None.
        suffix: The suffix of files in a directory.

    Raises:
        OSError: They cannot be written.
    """
    if path is None:
        return
    if len(graphs) == 1:
        Path(path).write_text(next(iter(graphs.values())))
        return
    Path(path).mkdir(parents=True, exist_ok=True)
    for proc, graph in graphs.items():
        Path(path, f"{proc}{suffix}").write_text(graph)
