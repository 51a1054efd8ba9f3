"""A snapshot for scripts: JSON, and whether the program is healthy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mesh_telemetry._top.snapshot import Proc, Row, Snapshot

__all__ = ["is_healthy", "plain"]


def is_healthy(snapshot: Snapshot) -> bool:
    """Return whether nothing has failed, hangs or is deadlocked, and all hosts have replied."""
    problems = (snapshot.failures, snapshot.deadlocks, snapshot.hangs, snapshot.unresponsive_hosts)
    return not any(problems)


def plain(snapshot: Snapshot, pid: int) -> dict[str, Any]:
    """Return the snapshot as an object for JSON."""
    return {
        "pid": pid,
        "at": snapshot.at,
        "is_healthy": is_healthy(snapshot),
        "hosts": [{"number": one.number, **one.row} for one in snapshot.hosts.values()],
        "procs": [_proc(one) for one in snapshot.procs.values()],
        "meshes": [{**one.row, "actors": one.actors} for one in snapshot.meshes.values()],
        "failures": snapshot.failures,
        "deadlocks": [[_wait(row) for row in cycle] for cycle in snapshot.deadlocks],
        "hangs": snapshot.hangs,
        "unresponsive_hosts": snapshot.unresponsive_hosts,
    }


def _proc(proc: Proc) -> dict[str, Any]:
    return {
        **proc.row,
        "state": proc.state,
        "cpu_percent": proc.cpu_percent,
        "messages_s": proc.messages_s,
        "actors": proc.actors,
    }


def _wait(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("actor", "rank", "running", "endpoint", "for_actor")}
