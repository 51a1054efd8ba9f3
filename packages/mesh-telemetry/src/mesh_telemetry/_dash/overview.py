"""The topic of the dashboard's first page: the program, activity, failures and hosts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from mesh_telemetry._dash.lines import ERROR_PATTERN
from mesh_telemetry._dash.page_queries import PageQueries
from mesh_telemetry._hangs.tables import HANG_ROWS, open_hangs

__all__ = ["counts", "overview"]

_SECONDS = 60
_FAILURES_MAX = 50
_HOSTS_MAX = 200
_LINES_MAX = 8
# Lines are searched for errors in this window only, because each of them is compared.
_LINES_WINDOW_S = 600
# Shorter waits are part of normal work.
_WAIT_MS_MIN = 1000
_ACTORS = "select count(*) as n, count(distinct mesh_id) as meshes from actors"
_PROCS = "select state = 'dead' as is_dead, count(*) as n from procs group by 1"


def counts(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the numbers of actors and processes, which are shown first."""
    actors, procs = queries.rows_of_all((_ACTORS,), (_PROCS,))
    return _counts_of(actors, procs)


def overview(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return counts, the activity of the last minute by second, the latest failures, and hosts.

    Waits of less than a second are not counted.
    """
    # The current second is incomplete.
    until_s = int(time.time()) - 1
    since_us, until_us = (until_s - _SECONDS) * 1_000_000, until_s * 1_000_000
    (
        actors,
        ended,
        failed,
        procs,
        root,
        waits,
        failures,
        failure_count,
        lines,
        hosts,
        hangs,
        *rest,
    ) = queries.rows_of_all(
        (_ACTORS,),
        (
            "select count(distinct actor_id) as n from actor_status_events"
            " where new_status <> 'running'",
        ),
        (
            "select count(distinct actor_id) as n from actor_status_events"
            " where new_status = 'failed'",
        ),
        (_PROCS,),
        ("select pid, host, started_us from procs where mesh = 'root' limit 1",),
        (f"select count(*) as n from waits where waited_ms >= {_WAIT_MS_MIN}",),
        (
            "select timestamp_us, kind, mesh, mesh_id, rank, reason, cause, signal, exit_code,"
            " host, proc from failures order by timestamp_us desc"
            f" limit {_FAILURES_MAX}",
        ),
        ("select count(*) as n from failures",),
        (
            "select timestamp_us, mesh, rank, line from logs where timestamp_us >= $1"
            f" and line ~* $2 order by timestamp_us desc limit {_LINES_MAX}",
            until_us - _LINES_WINDOW_S * 1_000_000,
            ERROR_PATTERN,
        ),
        (
            "select host, proc, cpus, load_1m, memory_total_bytes, memory_free_bytes, gpus,"
            f" gpus_json from hosts order by host, proc limit {_HOSTS_MAX}",
        ),
        (HANG_ROWS,),
        *(_per_second(table, since_us, until_us) for table in ("messages", "spans", "logs")),
    )
    return {
        **_counts_of(actors, procs),
        "program": _program(queries.program, root, until_s),
        "actors_failed": failed[0]["n"],
        # A failed actor is stopped afterwards.
        "actors_stopped": ended[0]["n"] - failed[0]["n"],
        "waits": waits[0]["n"],
        "failure_count": failure_count[0]["n"],
        "failures": failures,
        "error_lines": lines,
        "hosts": [_host(row) for row in hosts],
        "hangs": open_hangs(hangs),
        "activity": {
            name: _series(rows, until_s)
            for name, rows in zip(("messages", "spans", "logs"), rest, strict=True)
        },
    }


def _counts_of(actors: list[dict[str, Any]], procs: list[dict[str, Any]]) -> dict[str, int]:
    by_life = {row["is_dead"]: row["n"] for row in procs}
    return {
        "actors": actors[0]["n"],
        "meshes": actors[0]["meshes"],
        "procs": by_life.get(False, 0),
        "procs_dead": by_life.get(True, 0),
    }


def _program(line: str, root: list[dict[str, Any]], now_s: int) -> dict[str, Any]:
    """Return the command line, pid, host and age of the program; None for unknown values."""
    row = root[0] if root else {"pid": None, "host": None, "started_us": None}
    started_us = row["started_us"]
    age_s = None if started_us is None else max(0, now_s - started_us // 1_000_000)
    return {"line": line, "pid": row["pid"], "host": row["host"], "age_s": age_s}


def _host(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a host with the mean utilization of its GPUs."""
    gpus = json.loads(row.pop("gpus_json") or "[]")
    uses = [one["use_percent"] for one in gpus]
    return {**row, "gpu_use_percent": sum(uses) / len(uses) if uses else None}


def _per_second(table: str, since_us: int, until_us: int) -> tuple[Any, ...]:
    return (
        f"select timestamp_us / 1000000 as second, count(*) as n from {table}"
        " where timestamp_us >= $1 and timestamp_us < $2 group by timestamp_us / 1000000",
        since_us,
        until_us,
    )


def _series(rows: list[dict[str, Any]], until_s: int) -> list[int]:
    counts = [0] * _SECONDS
    for row in rows:
        counts[row["second"] - (until_s - _SECONDS)] = row["n"]
    return counts
