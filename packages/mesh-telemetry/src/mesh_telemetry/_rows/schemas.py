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
_SENT_IN = "parent_span_id s? | the span that it was sent in, a `spans.span_id`; null for none"
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
        "Actors that were started; one row each, of its latest start.",
        "id u64 | the actor: a number made of its process and its mesh, the same in all tables",
        _WHEN,
        "mesh_id u64 | its mesh, a `meshes.id`: the port of the actor",
        "rank u64 | its rank in the mesh",
        "full_name s | its address, as `host/0.3:17`",
        "display_name s | the name that its mesh was spawned under",
        "class s? | its class",
        "incarnation u64 | how many processes had its place before",
    ),
    "meshes": _table(
        "Meshes of processes and of actors that were spawned; told by who spawned them.",
        "id u64 | the mesh",
        _WHEN,
        "class s | `Proc`, or the class of the actors",
        "given_name s | the name that it was spawned under",
        "full_name s | the address of it, as `host/0.0:17` where `0.0` has spawned it",
        "shape_json s | its dimensions and their sizes",
        "size u64 | how many ranks it has",
        "parent_mesh_id u64? | of actors: the processes that they were spawned on",
        "owner_mesh_id u64? | the mesh of the actor that owns it; null for the program",
    ),
    "actor_status_events": _table(
        "What actors have become.",
        "id u64 | the row",
        _WHEN,
        "actor_id u64 | the actor, an `actors.id`",
        "mesh_id u64 | its mesh",
        "rank u64 | its rank in the mesh",
        "new_status s | `running`, `failed` or `stopped`",
        "reason s? | why, where it has failed",
    ),
    "sent_messages": _table(
        "Messages, one row for each receiver; told by the sender.",
        "id u64 | the message: the same in `messages`",
        _WHEN,
        "actor_mesh_id u64 | the mesh of the receiver, or the port of a channel",
        "rank u64 | the rank that was called",
        "call u64? | the port of the answers; null when none is wanted",
        "bytes u64 | its length without shared parts",
        "to_proc s | the process of the receiver",
        "sender_actor_id u64? | the actor that has sent it, an `actors.id`; null outside of actors",
        _ENDPOINT,
        _SENT_IN,
    ),
    "messages": _table(
        "Messages that were put into a mailbox; told by the receiver.",
        "id u64 | the message: the same in `sent_messages` when an answer is wanted",
        _WHEN,
        "to_actor_id u64 | the receiver, an `actors.id`",
        "mesh_id u64 | its mesh, or the port of a channel",
        "rank u64 | the rank that was called",
        "call u64? | the port of the answers; null when none is wanted",
        "bytes u64 | its length without shared parts",
        "from_proc s | the process of the sender",
        "from_actor_id u64? | the actor that has sent it, an `actors.id`; null outside of actors, "
        "and when nothing was recorded there",
        _ENDPOINT,
        _SENT_IN,
    ),
    "message_status_events": _table(
        "What has become of messages; the last three by the caller, the others by the receiver.",
        "id u64 | the row",
        _WHEN,
        "message_id u64? | the message; null when no answer is wanted and it is not `queued`",
        "status s | `queued`, `active`, `complete`, `failed`, `refused`; `returned`, `cancelled`",
        "code u64 | 0, or the fault code of what came instead of a value",
        "mesh_id u64 | the mesh of the receiver, or the port of a channel",
        "rank u64 | the rank that was called",
        _ENDPOINT,
    ),
    "spans": _table(
        "Stretches of time that the program has named; `span_events` says when they ended.",
        "process_id s | the process, as `host/0.3`",
        "id u64 | the span",
        "name s | what was done",
        _ACTOR,
        "fields_json s | the attributes that the program gave",
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
        "Begins and ends of spans.",
        "process_id s | the process, as `host/0.3`",
        "id u64 | the span",
        _WHEN,
        "event_type s | `enter` or `close`",
        "is_error b | whether an exception ended it",
    ),
    "metric_gauges": _table(
        "Values of gauges, each of them.",
        "name s | the instrument",
        _WHEN,
        "start_timestamp_us i64? | the same",
        "unit s | its unit",
        "attributes_json s | the attributes that the program gave",
        "value_f64 f64? | the value, if it is not whole",
        "value_i64 i64? | the value, if it is whole",
        _ACTOR,
    ),
    "metric_sums": _table(
        "What was added to counters, a tenth of a second in a row.",
        "name s | the instrument",
        "timestamp_us i64 | the last addition in it",
        "start_timestamp_us i64 | the first addition in it",
        "unit s | its unit",
        "temporality s | `delta`: what was added in between",
        "is_monotonic b | false for counters that may fall",
        "attributes_json s | the attributes that the program gave",
        "sum_f64 f64? | the sum, if it is not whole",
        "sum_i64 i64? | the sum, if it is whole",
        _ACTOR,
    ),
    "metric_histograms": _table(
        "What histograms were given, a tenth of a second in a row.",
        "name s | the instrument",
        "timestamp_us i64 | the last value in it",
        "start_timestamp_us i64 | the first value in it",
        "unit s | its unit",
        "temporality s | `delta`: what was given in between",
        "attributes_json s | the attributes that the program gave",
        "count u64 | how many values",
        "sum_f64 f64 | their sum",
        "min_f64 f64 | the least",
        "max_f64 f64 | the greatest",
        "bounds_json s | the upper bounds of the buckets",
        "bucket_counts_json s | how many values are in each; in the last, those above all",
        _ACTOR,
    ),
    "logs": _table(
        "Lines that processes have printed; told by what looks after their host.",
        _WHEN,
        "mesh s | the name of the process mesh",
        "mesh_id u64 | that mesh",
        "rank u64 | the rank in it",
        "stream s | `stdout` or `stderr`",
        "line s | the line",
    ),
    "failures": _table(
        "Failures of actors and deaths of processes that nobody had asked for.",
        _WHEN,
        "kind s | `actor` or `proc`",
        "mesh s | the name of the mesh",
        "mesh_id u64 | that mesh",
        "rank u64 | the rank in it",
        "reason s? | the exception, or why the process has ended",
        "cause s? | what has led to the exception, the nearest first, a line each",
        "pid i64? | of a process: its number",
        "exit_code i64? | of a process: its exit status",
        "signal i64? | of a process: the signal that has ended it",
        "log_tail s? | of a process: the last that it has printed",
    ),
    "events": _table(
        "Events as Mesh tells of them, but for messages, spans, measurements and lines.",
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
        "What is not in the other tables although it happened.",
        _WHEN,
        "family s | what: `messages`, `lives`, `logs`, `spans`, `metrics`",
        "reason s | `ring`: read too late; `room`: older than what there is room for; "
        "`disk`: the disk was full; `size`: too long",
        "events u64 | how many",
        "bytes u64 | how long they were, where that is known",
    ),
    "rows": _table(
        "Rows that packages and programs have told, for tables of their own and for others.",
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
        "warnings_json s | what whoever made it had to say",
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
        "owns_gil b | whether it holds the lock of the interpreter",
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
        "is_entry b | whether the interpreter was called anew for it",
    ),
    "pyspy_local_variables": _table(
        "Local variables of calls in dumps, where they were asked for.",
        _DUMP,
        _STORED,
        _OF,
        _THREAD,
        _DEPTH,
        "name s | the variable",
        "addr u64 | where its value lies in memory",
        "arg b | whether it is an argument",
        "repr s? | the value, cut short",
    ),
    "procs": _table(
        "The processes of a host; those that have ended as long as their rows are kept.",
        "timestamp_us i64 | now",
        "mesh s | the name of the process mesh; `root` for the program, `agent` for what looks "
        "after a host",
        "mesh_id u64 | that mesh",
        "rank u64 | the rank in it",
        "incarnation u64 | how many processes had its place before",
        "pid i64 | its number on the host",
        "state s | `running`, `sleeping`, `waiting`, `stopped`, `zombie`, `idle`, or `dead`",
        "cpu_s f64? | seconds of processor that it has used",
        "rss_bytes i64? | memory that it has",
        "threads i64? | how many threads it has",
        "started_us i64 | since when it is recorded",
        "kept_bytes i64 | how much its events take on the host",
    ),
    "hosts": _table(
        "The machines.",
        "timestamp_us i64 | now",
        "cpus i64 | how many processors this job may use",
        "load_1m f64 | how many processes want to run, over the last minute",
        "memory_total_bytes i64 | memory that it has",
        "memory_free_bytes i64 | memory that could be had",
        "boot_us i64 | when it was started, in microseconds since the epoch",
        "gpus i64? | how many GPUs; null where `pynvml` is not installed",
        "gpus_json s? | of each GPU its name, memory and use",
    ),
    "actor_nodes": _table(
        "Actors that there are now, and what they do.",
        "timestamp_us i64 | now",
        "id u64 | the actor, an `actors.id`",
        "mesh_id u64 | its mesh",
        "rank u64 | its rank in the mesh",
        "actor s | the name that its mesh was spawned under",
        "actor_type s | its class",
        "actor_status s | `processing` while it serves a message, else `idle`",
        "last_message_handler s | the endpoint that it has begun last",
        "messages_processed u64 | how many messages it has served",
        "queue_depth u64 | how many wait for their turn",
    ),
    "active_handlers": _table(
        "Messages that actors serve now.",
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
        "Answers that somebody waits for now.",
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
        "Code that stands still until somebody has attached to it with `mesh debug`.",
        "timestamp_us i64 | now",
        "id s | the session",
        "kind s | `breakpoint`, or `post_mortem` where an exception was raised",
        "actor_id u64? | the actor that stands, an `actors.id`; null outside of actors",
        "actor s? | the name of its mesh",
        "mesh s | the name of the process mesh",
        "rank i64 | the rank in the mesh of the actor, or in that of the process",
        "function s | where it stands",
        "file s | in which file",
        "line i64 | in which line",
        "since_us i64 | since when, in microseconds since the epoch",
        "attached b | whether somebody is attached",
    ),
}

TABLES: Mapping[str, pa.Schema] = {name: schema_of(doc) for name, doc in TABLE_DOCS.items()}
