"""The SQL queries of `mesh top`."""

from __future__ import annotations

__all__ = [
    "ACTORS",
    "ACTORS_LIKE",
    "COUNTS",
    "FAILURES",
    "HOSTS",
    "MESHES",
    "PROCS",
    "RATES",
    "WAITS",
]

PROCS = """
    select host, proc, mesh, mesh_id, rank, incarnation, pid, state, cpu_s, rss_bytes, threads,
           started_us, timestamp_us
    from procs
"""
HOSTS = """
    select host, proc, cpus, load_1m, memory_total_bytes, memory_free_bytes, gpus, boot_us
    from hosts
"""
RATES = "select proc, count(*) as messages from messages where timestamp_us > $1 group by proc"
MESHES = """
    select id, timestamp_us, class, given_name, shape_json, size, parent_mesh_id, owner_mesh_id,
        proc
    from meshes
"""
FAILURES = """
    select timestamp_us, kind, mesh, mesh_id, rank, reason, cause, pid, exit_code, signal, log_tail,
           proc
    from failures order by timestamp_us desc limit 200
"""
WAITS = """
    select w.actor_id, w.actor, w.running, w.endpoint, w.waited_ms, w.for_actor_id, w.for_mesh_id,
           w.for_proc, w.proc, b.rank, a.display_name as for_actor, a.rank as for_rank
    from waits w left join actors a on a.id = w.for_actor_id left join actors b on b.id = w.actor_id
"""

# The last time of each status of an actor; a failure is followed by `stopped`.
_LAST = """
    select actor_id, proc, mesh_id,
           max(case when new_status = 'running' then timestamp_us end) as running_us,
           max(case when new_status = 'failed' then timestamp_us end) as failed_us,
           max(case when new_status = 'stopped' then timestamp_us end) as stopped_us
    from actor_status_events {where} group by actor_id, proc, mesh_id
"""
# Actors of an exited process report no status themselves.
_STATE = """
    case when failed_us >= coalesce(running_us, 0) then 'failed'
         when stopped_us >= coalesce(running_us, 0) then 'stopped'
         when proc in ({dead}) then 'lost' else 'running' end
"""
#: The number of actors in each state. `{by}` is `proc` or `mesh_id`, and `{dead}` is an SQL list of
#: the exited processes.
COUNTS = f"""
    select {{by}}, state, count(*) as actors
    from (select {{by}}, {_STATE} as state from ({_LAST.format(where="")}))
    group by {{by}}, state
"""
#: A page of actors. `{where}` and `{of}` are conditions, `{order}` is the order, `{dead}` as above.
ACTORS = f"""
    select a.id, a.mesh_id, a.rank, a.display_name, a.class, a.full_name, a.incarnation, a.proc,
           a.timestamp_us, e.state
    from (select * from actors where {{where}}) a left join
         (select actor_id, {_STATE} as state from ({_LAST.format(where="where {of}")})) e
         on e.actor_id = a.id
    order by {{order}} limit {{limit}} offset {{offset}}
"""
#: The processes with actors whose name or class matches a pattern.
ACTORS_LIKE = """
    select proc, mesh_id, count(*) as actors from actors
    where lower(display_name) like $1 or lower(class) like $1 group by proc, mesh_id
"""
