"""The topic of the dashboard for endpoints: their rates, latencies and failed calls."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from mesh_telemetry._dash.page_queries import PageQueries

__all__ = ["calls"]

#: The length of the window, in seconds.
_WINDOW_S = 60
_ENDPOINTS_MAX = 100
_FAILED_MAX = 20
# Latencies are computed from at most this many rows, which bounds the cost of a busy program.
_STATUSES_MAX = 20_000


def calls(queries: PageQueries, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the endpoints called in the last minute, those with failures first; failed calls.

    Latencies are from the arrival of a message to its reply. They are computed from the latest
    calls only, and are missing for calls without a reply.
    """
    now_us = int(time.time() * 1e6)
    since_us = now_us - _WINDOW_S * 1_000_000
    counted, timed, failed, root = queries.rows_of_all(
        (
            "select m.class, e.endpoint, e.status, sum(e.n) as n from"
            " (select mesh_id, endpoint, status, count(*) as n from message_status_events"
            " where timestamp_us >= $1 and endpoint is not null"
            " and status in ('queued', 'failed', 'refused') group by mesh_id, endpoint, status) e"
            " left join (select id, class from meshes) m on m.id = e.mesh_id"
            " group by m.class, e.endpoint, e.status",
            since_us,
        ),
        (_LATENCIES, since_us),
        (
            "select f.timestamp_us, f.status, f.endpoint, a.id, a.class, a.display_name, a.rank,"
            " f.host, f.proc from (select * from message_status_events"
            " where status in ('failed', 'refused') and endpoint is not null"
            f" order by timestamp_us desc limit {_FAILED_MAX}) f left join actors a"
            " on a.mesh_id = f.mesh_id and a.host = f.host and a.proc = f.proc"
            " order by f.timestamp_us desc",
        ),
        ("select min(started_us) as started_us from procs where mesh = 'root'",),
    )
    found: dict[tuple[str | None, str], dict[str, Any]] = {}
    for row in counted:
        key = (row["class"], row["endpoint"])
        entry = found.setdefault(key, _no_calls(*key))
        entry["calls" if row["status"] == "queued" else "failures"] += row["n"]
    for row in timed:
        key = (row["class"], row["endpoint"])
        entry = found.setdefault(key, _no_calls(*key))
        entry["p50_us"], entry["p99_us"] = int(row["p50_us"]), int(row["p99_us"])
    rows = sorted(
        found.values(),
        key=lambda one: (not one["failures"], -one["calls"], one["class"] or "", one["endpoint"]),
    )
    # A program that started within the window has run for only a part of it.
    started_us = max(since_us, min(root[0]["started_us"] or 0, now_us - 1_000_000))
    return {
        "window_s": round((now_us - started_us) / 1e6),
        "count": len(rows),
        "endpoints": rows[:_ENDPOINTS_MAX],
        "failed": failed,
    }


_LATENCIES = f"""
    select m.class, e.endpoint, approx_percentile_cont(e.took_us, 0.5) as p50_us,
           approx_percentile_cont(e.took_us, 0.99) as p99_us
    from (select mesh_id, endpoint, message_id, max(timestamp_us) - min(timestamp_us) as took_us
          from (select mesh_id, endpoint, message_id, timestamp_us from message_status_events
                where timestamp_us >= $1 and endpoint is not null and message_id is not null
                and status in ('queued', 'complete', 'failed')
                order by timestamp_us desc limit {_STATUSES_MAX})
          group by mesh_id, endpoint, message_id having count(*) > 1) e
    left join (select id, class from meshes) m on m.id = e.mesh_id
    group by m.class, e.endpoint
"""


def _no_calls(kind: str | None, endpoint: str) -> dict[str, Any]:
    return {
        "class": kind,
        "endpoint": endpoint,
        "calls": 0,
        "failures": 0,
        "p50_us": None,
        "p99_us": None,
    }
