"""The schemas of the tables, with the descriptions of their columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

__all__ = [
    "LASTING_TABLES",
    "LIVE_TABLES",
    "TABLES",
    "TABLE_DOCS",
    "Column",
    "TableDoc",
    "column",
    "schema_of",
]

#: Tables of the current state, which are computed when they are queried and have no history.
LIVE_TABLES = frozenset(
    {"active_handlers", "actor_nodes", "debug_sessions", "hosts", "procs", "stacks", "waits"}
)

#: Tables whose rows are evicted only for lack of space.
LASTING_TABLES = frozenset({"actor_status_events", "actors", "failures", "meshes"})

_TYPES = {
    "u64": pa.uint64(),
    "i32": pa.int32(),
    "i64": pa.int64(),
    "f64": pa.float64(),
    "s": pa.string(),
    "b": pa.bool_(),
}


class Column(NamedTuple):
    """A column of a table."""

    name: str
    type: pa.DataType
    is_nullable: bool
    text: str
    """Its description."""


class TableDoc(NamedTuple):
    """The description of a table."""

    text: str
    columns: tuple[Column, ...]


_WHEN = "timestamp_us i64 | when, in microseconds since the epoch"
_WHERE = ("host s | the name of the machine", "proc s | the process, as `0.3`: host and slot")
_ENDPOINT = "endpoint s? | the endpoint that it is for; null for channels"
_SENT_IN = "parent_span_id s? | the span in which it was sent, a `spans.span_id`; null if none"
_ACTOR = "actor_id u64? | the actor that ran, an `actors.id`; null outside of actors"
_DUMP = "dump_id s | the dump: the same for all processes that were asked at once"
_STORED = "timestamp_us i64 | when the dump was stored"
_OF = "pid i32 | the process, or one that it has started"
_THREAD = "thread_id u64 | the thread, as Python numbers it"
_DEPTH = "frame_depth i32 | 0 for the innermost"


def column(declared: str) -> Column:
    """Parse `name type | description`; a question mark after the type makes the column nullable.

    The types are `u64`, `i32`, `i64`, `f64`, `s` for text and `b` for booleans.

    Raises:
        ValueError: The declaration is malformed.
    """
    head, _, words = declared.partition(" | ")
    name, _, kind = head.partition(" ")
    if not name.isidentifier() or kind.rstrip("?") not in _TYPES or not words:
        raise ValueError(
            f"invalid column {declared!r}: use the form 'bytes u64 | description', or u64? if it"
            " can be null"
        )
    return Column(name, _TYPES[kind.rstrip("?")], kind.endswith("?"), words)


def schema_of(doc: TableDoc) -> pa.Schema:
    """Return the schema of a table."""
    return pa.schema([pa.field(one.name, one.type, one.is_nullable) for one in doc.columns])


def _table(text: str, *columns: str) -> TableDoc:
    return TableDoc(text, tuple(column(declared) for declared in (*columns, *_WHERE)))


TABLE_DOCS: Mapping[str, TableDoc] = {
    "actors": _table(
        "Actors that were started; one row for each, from its latest start.",
        "id u64 | the actor: a number derived from its process and mesh, the same in all tables",
        _WHEN,
        "mesh_id u64 | its mesh, a `meshes.id`: the port of the actor",
        "rank u64 | its rank in the mesh",
        "full_name s | its address, as `host/0.3:17`",
        "display_name s | the name that its mesh was spawned under",
        "class s? | its class",
        "incarnation u64 | how many processes it has replaced",
    ),
    "meshes": _table(
        "Meshes of processes and of actors that were spawned, recorded by their spawner.",
        "id u64 | the mesh",
        _WHEN,
        "class s | `Proc`, or the class of the actors",
        "given_name s | the name that it was spawned under",
        "full_name s | its address, such as `host/0.0:17` if process `0.0` spawned it",
        "shape_json s | its dimensions and their sizes",
        "size u64 | how many ranks it has",
        "parent_mesh_id u64? | of actors: the processes that they were spawned on",
        "owner_mesh_id u64? | the mesh of the actor that owns it; null for the program",
    ),
    "actor_status_events": _table(
        "Status changes of actors.",
        "id u64 | the row",
        _WHEN,
        "actor_id u64 | the actor, an `actors.id`",
        "mesh_id u64 | its mesh",
        "rank u64 | its rank in the mesh",
        "new_status s | `running`, `failed` or `stopped`",
        "reason s? | why it failed",
    ),
    "sent_messages": _table(
        "Messages, one row for each receiver, recorded by the sender.",
        "id u64 | the message: the same in `messages`",
        _WHEN,
        "actor_mesh_id u64 | the mesh of the receiver, or the port of a channel",
        "rank u64 | the rank that was called",
        "call u64? | the port of the answers; null when none is wanted",
        "bytes u64 | its length without shared parts",
        "to_proc s | the process of the receiver",
        "sender_actor_id u64? | the actor that sent it, an `actors.id`; null outside of actors",
        _ENDPOINT,
        _SENT_IN,
    ),
    "messages": _table(
        "Messages that were put into a mailbox, recorded by the receiver.",
        "id u64 | the message: the same in `sent_messages` when an answer is wanted",
        _WHEN,
        "to_actor_id u64 | the receiver, an `actors.id`",
        "mesh_id u64 | its mesh, or the port of a channel",
        "rank u64 | the rank that was called",
        "call u64? | the port of the answers; null when none is wanted",
        "bytes u64 | its length without shared parts",
        "from_proc s | the process of the sender",
        "from_actor_id u64? | the actor that sent it, an `actors.id`; null outside of actors, "
        "and if its process was not recorded",
        _ENDPOINT,
        _SENT_IN,
    ),
    "message_status_events": _table(
        "Status changes of messages; the last three by the caller, the others by the receiver.",
        "id u64 | the row",
        _WHEN,
        "message_id u64? | the message; null when no answer is wanted and it is not `queued`",
        "status s | `queued`, `active`, `complete`, `failed`, `refused`; `returned`, `cancelled`",
        "code u64 | 0, or the fault code if there is no value",
        "mesh_id u64 | the mesh of the receiver, or the port of a channel",
        "rank u64 | the rank that was called",
        _ENDPOINT,
    ),
    "spans": _table(
        "Spans that the program recorded; their ends are in `span_events`.",
        "process_id s | the process, as `host/0.3`",
        "id u64 | the span",
        "name s | what was done",
        _ACTOR,
        "fields_json s | the attributes that the program set",
        "timestamp_us i64 | when it began, in microseconds since the epoch",
        "parent_id u64? | the span around it in its process, if any",
        "trace_id s? | the trace that it is a part of, as 32 hexadecimal digits",
        "span_id s? | the span as it is known in other processes, as 16 hexadecimal digits",
        "parent_span_id s? | the span around it, here or where the message that was served was "
        "sent: a `span_id`; null for the first of a trace",
        "message_id u64? | the message that was served when it began, a `messages.id`; null "
        "outside of actors, and when no answer was wanted",
    ),
    "span_events": _table(
        "Starts and ends of spans.",
        "process_id s | the process, as `host/0.3`",
        "id u64 | the span",
        _WHEN,
        "event_type s | `enter` or `close`",
        "is_error b | whether an exception ended it",
    ),
    "metric_gauges": _table(
        "Values of gauges, one row for each.",
        "name s | the instrument",
        _WHEN,
        "start_timestamp_us i64? | the same",
        "unit s | its unit",
        "attributes_json s | the attributes that the program set",
        "value_f64 f64? | the value, if it is not whole",
        "value_i64 i64? | the value, if it is whole",
        _ACTOR,
    ),
    "metric_sums": _table(
        "Additions to counters, summed over a tenth of a second.",
        "name s | the instrument",
        "timestamp_us i64 | the last addition in it",
        "start_timestamp_us i64 | the first addition in it",
        "unit s | its unit",
        "temporality s | `delta`: what was added in between",
        "is_monotonic b | false for counters that may fall",
        "attributes_json s | the attributes that the program set",
        "sum_f64 f64? | the sum, if it is not whole",
        "sum_i64 i64? | the sum, if it is whole",
        _ACTOR,
    ),
    "metric_histograms": _table(
        "Values recorded by histograms, aggregated over a tenth of a second.",
        "name s | the instrument",
        "timestamp_us i64 | the last value in it",
        "start_timestamp_us i64 | the first value in it",
        "unit s | its unit",
        "temporality s | `delta`: what was given in between",
        "attributes_json s | the attributes that the program set",
        "count u64 | how many values",
        "sum_f64 f64 | their sum",
        "min_f64 f64 | the least",
        "max_f64 f64 | the greatest",
        "bounds_json s | the upper bounds of the buckets",
        "bucket_counts_json s | how many values are in each; in the last, those above all",
        _ACTOR,
    ),
    "logs": _table(
        "Lines that processes printed, recorded by the agent of their host.",
        _WHEN,
        "mesh s | the name of the process mesh",
        "mesh_id u64 | that mesh",
        "rank u64 | the rank in it",
        "stream s | `stdout` or `stderr`",
        "line s | the line",
    ),
    "failures": _table(
        "Failures of actors, and processes that died unexpectedly.",
        _WHEN,
        "kind s | `actor` or `proc`",
        "mesh s | the name of the mesh",
        "mesh_id u64 | that mesh",
        "rank u64 | the rank in it",
        "reason s? | the exception, or why the process exited",
        "cause s? | the causes of the exception, the nearest first, one per line",
        "pid i64? | of a process: its pid",
        "exit_code i64? | of a process: its exit status",
        "signal i64? | of a process: the signal that killed it",
        "log_tail s? | of a process: the last lines that it printed",
    ),
    "events": _table(
        "Events of Mesh except messages, spans, measurements and lines.",
        _WHEN,
        "name s | its kind, as `docs/protocol/events.md` has them",
        "actor u64 | the port, or the number of the mesh, that it happened to",
        "peer_proc s? | the other process, or the one that it is about",
        "call u64 | the port of the answers, or another number",
        "rank u64 | the rank",
        "code u64 | why, or how",
        "size u64 | how much, or how many",
        "text s | a name, or a word",
        "fields_json s | the attributes",
    ),
    "dropped": _table(
        "Events that are missing from the other tables.",
        _WHEN,
        "family s | what: `messages`, `lives`, `logs`, `spans`, `metrics`",
        "reason s | `ring`: read too late; `room`: older than what there is room for; "
        "`disk`: the disk was full; `size`: too long",
        "events u64 | how many",
        "bytes u64 | how long they were, where that is known",
    ),
    "rows": _table(
        "Rows that packages and programs recorded, for their own and other tables.",
        _WHEN,
        "table_name s | the table",
        _ACTOR,
        "row_json s | its columns",
    ),
    "pyspy_dumps": _table(
        "Dumps of stacks, one row for each process; the four tables are joined by `dump_id`, "
        "`proc` and `pid`.",
        _DUMP,
        "timestamp_us i64 | when it was stored, in microseconds since the epoch",
        "pid i32 | the number of the process on its host",
        "binary s | what it runs",
        "proc_ref s | its address, as `host/0.3`; of a dump of others what they call it",
        "capture_mode s | `python_only`, or `native` where frames of other languages are in it",
        "warnings_json s | warnings of the program that created the dump",
    ),
    "pyspy_stack_traces": _table(
        "Threads in dumps.",
        _DUMP,
        _STORED,
        _OF,
        _THREAD,
        "thread_name s? | its name",
        "os_thread_id u64? | its number in the system",
        "active b | whether it computes",
        "owns_gil b | whether it holds the GIL",
    ),
    "pyspy_frames": _table(
        "Calls in the stacks of dumps.",
        _DUMP,
        _STORED,
        _OF,
        _THREAD,
        _DEPTH,
        "name s | what runs",
        "filename s | where",
        "module s? | of other languages the library",
        "short_filename s? | where, without the folders that are searched for modules",
        "line i32 | in which line; 0 where that is not known",
        "is_entry b | whether it is the entry frame of an interpreter call",
    ),
    "pyspy_local_variables": _table(
        "Local variables of calls in dumps, if they were requested.",
        _DUMP,
        _STORED,
        _OF,
        _THREAD,
        _DEPTH,
        "name s | the variable",
        "addr u64 | the memory address of its value",
        "arg b | whether it is an argument",
        "repr s? | the value, cut short",
    ),
    "procs": _table(
        "The processes of a host; exited processes as long as their rows are kept.",
        "timestamp_us i64 | now",
        "mesh s | the name of the process mesh; `root` for the program, `agent` for the "
        "agent of a host",
        "mesh_id u64 | that mesh",
        "rank u64 | the rank in it",
        "incarnation u64 | how many processes it has replaced",
        "pid i64 | its number on the host",
        "state s | `running`, `sleeping`, `waiting`, `stopped`, `zombie`, `idle`, or `dead`",
        "cpu_s f64? | CPU seconds that it has used",
        "rss_bytes i64? | memory that it has",
        "threads i64? | how many threads it has",
        "started_us i64 | the time since which it is recorded",
        "kept_bytes i64 | how many bytes its events use on the host",
    ),
    "hosts": _table(
        "The machines.",
        "timestamp_us i64 | now",
        "cpus i64 | how many CPUs this job may use",
        "load_1m f64 | the load average of the last minute",
        "memory_total_bytes i64 | memory that it has",
        "memory_free_bytes i64 | available memory",
        "boot_us i64 | when it was started, in microseconds since the epoch",
        "gpus i64? | how many GPUs; null where `pynvml` is not installed",
        "gpus_json s? | of each GPU its name, memory and use",
    ),
    "actor_nodes": _table(
        "Current actors, and what they do.",
        "timestamp_us i64 | now",
        "id u64 | the actor, an `actors.id`",
        "mesh_id u64 | its mesh",
        "rank u64 | its rank in the mesh",
        "actor s | the name that its mesh was spawned under",
        "actor_type s | its class",
        "actor_status s | `processing` while it serves a message, else `idle`",
        "last_message_handler s | the endpoint that it started last",
        "messages_processed u64 | how many messages it has served",
        "queue_depth u64 | how many messages are queued",
    ),
    "active_handlers": _table(
        "Messages that actors are processing now.",
        "timestamp_us i64 | now",
        "actor_id u64 | the actor, an `actors.id`",
        "mesh_id u64 | its mesh",
        "actor s | the name that its mesh was spawned under",
        "name s | the endpoint",
        "rank u64 | the rank that was called",
        "from_proc s | the process of the sender",
        "call u64? | the port of the answers; null when none is wanted",
        "message_id u64? | the message, as in `message_status_events`, whose `active` says since "
        "when; null when no answer is wanted",
    ),
    "waits": _table(
        "Answers that are currently awaited.",
        "timestamp_us i64 | now",
        "actor_id u64? | the actor that waits; null when that is not known",
        "actor s? | the name of its mesh",
        "running s? | its endpoint that waits",
        "since_us i64? | since when; known of actors that wait without a limit of time",
        "waited_ms f64? | for how long",
        "call u64 | the port of the answer",
        "endpoint s? | the endpoint that was called",
        "for_actor_id u64 | the actor that has not answered, an `actors.id`",
        "for_mesh_id u64 | its mesh",
        "for_proc s | its process",
    ),
    "stacks": _table(
        "What the threads of all processes run now, in Python, and what asyncio tasks await.",
        "timestamp_us i64 | now",
        "thread s | the name of the thread",
        "thread_id u64 | its number in Python",
        "task s? | the name of the task that is suspended there; null for what the thread runs",
        "task_id u64? | the number of that task: others may have its name",
        "depth i64 | 0 for the innermost frame",
        "function s | what runs",
        "file s | where",
        "line i64 | in which line",
    ),
    "debug_sessions": _table(
        "Code that is paused until a client attaches with `mesh debug`.",
        "timestamp_us i64 | now",
        "id s | the session",
        "kind s | `breakpoint`, or `post_mortem` at a raised exception",
        "actor_id u64? | the paused actor, an `actors.id`; null outside of actors",
        "actor s? | the name of its mesh",
        "mesh s | the name of the process mesh",
        "rank i64 | the rank in the mesh of the actor, or in that of the process",
        "function s | the function in which it is paused",
        "file s | in which file",
        "line i64 | in which line",
        "since_us i64 | since when, in microseconds since the epoch",
        "attached b | whether a client is attached",
    ),
}

TABLES: Mapping[str, pa.Schema] = {name: schema_of(doc) for name, doc in TABLE_DOCS.items()}
