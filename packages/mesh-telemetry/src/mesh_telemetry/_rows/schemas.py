"""The schemas of the tables, with the descriptions of their columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

__all__ = [
    "LIVE_TABLES",
    "PERMANENT_TABLES",
    "TABLES",
    "TABLE_DOCS",
    "Column",
    "TableDoc",
    "column",
    "schema_of",
]

#: Tables of the current state, which are computed when they are queried and have no history.
LIVE_TABLES = frozenset(
    {
        "active_handlers",
        "actor_nodes",
        "collectives",
        "debug_sessions",
        "hosts",
        "procs",
        "stacks",
        "steps",
        "waits",
    }
)

#: Tables whose rows are evicted only for lack of space.
PERMANENT_TABLES = frozenset({"actor_status_events", "actors", "failures", "meshes"})

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


_WHEN = "timestamp_us i64 | the time, in microseconds since the epoch"
_WHERE = ("host s | the name of the machine", "proc s | the process, such as `0.3`: host and slot")
_ENDPOINT = "endpoint s? | the endpoint that it is sent to; null for channels"
_SENT_IN = "parent_span_id s? | the span in which it was sent, a `spans.span_id`; null if none"
_ACTOR = "actor_id u64? | the actor that recorded it, an `actors.id`; null outside actors"
_DUMP = "dump_id s | the dump; the same for all processes that were dumped by one request"
_STORED = "timestamp_us i64 | when the dump was stored"
_OF = "pid i32 | the process, or one of its child processes"
_THREAD = "thread_id u64 | the Python id of the thread"
_DEPTH = "frame_depth i32 | 0 for the innermost frame"


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
        "full_name s | its address, such as `host/0.3:17`",
        "display_name s | the name of its mesh",
        "class s? | its class",
        "incarnation u64 | the number of earlier processes in its slot",
    ),
    "meshes": _table(
        "Meshes of processes and of actors that were spawned, recorded by their spawner.",
        "id u64 | the mesh",
        _WHEN,
        "class s | `Proc`, or the class of the actors",
        "given_name s | the name that was passed to `spawn`",
        "full_name s | its address, such as `host/0.0:17` if process `0.0` spawned it",
        "shape_json s | its dimensions and their sizes",
        "size u64 | the number of ranks",
        "parent_mesh_id u64? | for actors: the process mesh that they were spawned on",
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
        "id u64 | the message; the same id as in `messages`",
        _WHEN,
        "actor_mesh_id u64 | the mesh of the receiver, or the port of a channel",
        "rank u64 | the rank that was called",
        "call u64? | the port that receives the reply; null if no reply is expected",
        "bytes u64 | its length in bytes, without parts in shared memory",
        "to_proc s | the process of the receiver",
        "sender_actor_id u64? | the actor that sent it, an `actors.id`; null outside actors",
        _ENDPOINT,
        _SENT_IN,
    ),
    "messages": _table(
        "Messages that were put into a mailbox, recorded by the receiver.",
        "id u64 | the message; the same id as in `sent_messages` if a reply is expected",
        _WHEN,
        "to_actor_id u64 | the receiver, an `actors.id`",
        "mesh_id u64 | its mesh, or the port of a channel",
        "rank u64 | the rank that was called",
        "call u64? | the port that receives the reply; null if no reply is expected",
        "bytes u64 | its length in bytes, without parts in shared memory",
        "from_proc s | the process of the sender",
        "from_actor_id u64? | the actor that sent it, an `actors.id`; null outside actors, "
        "or if its process was not recorded",
        _ENDPOINT,
        _SENT_IN,
    ),
    "message_status_events": _table(
        "Status changes of messages. The caller records `returned` and `cancelled`, the receiver "
        "the others.",
        "id u64 | the row",
        _WHEN,
        "message_id u64? | the message; null if no reply is expected, except for `queued`",
        "status s | `queued`, `active`, `complete`, `failed`, `refused`, `returned` or `cancelled`",
        "code u64 | 0, or the fault code if there is no value",
        "mesh_id u64 | the mesh of the receiver, or the port of a channel",
        "rank u64 | the rank that was called",
        _ENDPOINT,
    ),
    "spans": _table(
        "Spans that the program recorded; their ends are in `span_events`.",
        "process_id s | the process, such as `host/0.3`",
        "id u64 | the span",
        "name s | the name of the span",
        _ACTOR,
        "fields_json s | the attributes that the program set",
        "timestamp_us i64 | when it began, in microseconds since the epoch",
        "parent_id u64? | the enclosing span in its process; null if none",
        "trace_id s? | its trace, as 32 hexadecimal digits",
        "span_id s? | the id of the span in all processes, as 16 hexadecimal digits",
        "parent_span_id s? | the enclosing span in this process, or else the span that sent the "
        "message being served, a `span_id`; null for the first span of a trace",
        "message_id u64? | the message that was being served when it began, a `messages.id`; "
        "null outside actors, or if no reply was expected",
    ),
    "span_events": _table(
        "Starts and ends of spans.",
        "process_id s | the process, such as `host/0.3`",
        "id u64 | the span",
        _WHEN,
        "event_type s | `enter` or `close`",
        "is_error b | whether it ended with an exception",
    ),
    "metric_gauges": _table(
        "Values of gauges, one row for each.",
        "name s | the instrument",
        _WHEN,
        "start_timestamp_us i64? | the same time",
        "unit s | its unit",
        "attributes_json s | the attributes that the program set",
        "value_f64 f64? | the value, if it is not an integer",
        "value_i64 i64? | the value, if it is an integer",
        _ACTOR,
    ),
    "metric_sums": _table(
        "Additions to counters, summed over a tenth of a second.",
        "name s | the instrument",
        "timestamp_us i64 | the time of the last addition",
        "start_timestamp_us i64 | the time of the first addition",
        "unit s | its unit",
        "temporality s | `delta`: the change since the previous row",
        "is_monotonic b | false for counters that can decrease",
        "attributes_json s | the attributes that the program set",
        "sum_f64 f64? | the sum, if it is not an integer",
        "sum_i64 i64? | the sum, if it is an integer",
        _ACTOR,
    ),
    "metric_histograms": _table(
        "Values recorded by histograms, aggregated over a tenth of a second.",
        "name s | the instrument",
        "timestamp_us i64 | the time of the last value",
        "start_timestamp_us i64 | the time of the first value",
        "unit s | its unit",
        "temporality s | `delta`: the values since the previous row",
        "attributes_json s | the attributes that the program set",
        "count u64 | the number of values",
        "sum_f64 f64 | their sum",
        "min_f64 f64 | the smallest value",
        "max_f64 f64 | the largest value",
        "bounds_json s | the upper bounds of the buckets",
        "bucket_counts_json s | the number of values in each bucket; the last one has the values "
        "above all bounds",
        _ACTOR,
    ),
    "logs": _table(
        "Lines that processes printed, recorded by the agent of their host.",
        _WHEN,
        "mesh s | the name of the process mesh",
        "mesh_id u64 | the id of that mesh",
        "rank u64 | the rank in that mesh",
        "stream s | `stdout` or `stderr`",
        "line s | the line",
    ),
    "failures": _table(
        "Failures of actors, and processes that died unexpectedly.",
        _WHEN,
        "kind s | `actor` or `proc`",
        "mesh s | the name of the mesh",
        "mesh_id u64 | the id of that mesh",
        "rank u64 | the rank in that mesh",
        "reason s? | the exception, or why the process exited",
        "cause s? | the causes of the exception, nearest first, one per line",
        "pid i64? | for a process: its pid",
        "exit_code i64? | for a process: its exit code",
        "signal i64? | for a process: the signal that killed it",
        "log_tail s? | for a process: the last lines that it printed",
    ),
    "events": _table(
        "Events of Mesh except messages, spans, measurements and lines.",
        _WHEN,
        "name s | its kind, as listed in `docs/protocol/events.md`",
        "actor u64 | the port of the actor, or the number of the mesh",
        "peer_proc s? | the other process, or the process that the event is about",
        "call u64 | the port that receives the reply, or another number",
        "rank u64 | the rank",
        "code u64 | a code, depending on the kind",
        "size u64 | a size or count, depending on the kind",
        "text s | a name or text, depending on the kind",
        "fields_json s | the attributes",
    ),
    "dropped": _table(
        "Events that are missing from the other tables.",
        _WHEN,
        "family s | the family: `messages`, `lifecycle`, `logs`, `spans`, `metrics` or `rows`",
        "reason s | `ring`: the ring buffer was full; `space`: evicted for lack of space; "
        "`disk`: the disk was full; `size`: too long",
        "events u64 | the number of events",
        "bytes u64 | their size, or 0 if it is not known",
    ),
    "rows": _table(
        "Rows that packages and programs recorded, of declared and undeclared tables.",
        _WHEN,
        "table_name s | the table",
        _ACTOR,
        "row_json s | the columns of the row",
    ),
    "pyspy_dumps": _table(
        "Dumps of stacks, one row for each process; the four tables are joined by `dump_id`, "
        "`proc` and `pid`.",
        _DUMP,
        "timestamp_us i64 | when it was stored, in microseconds since the epoch",
        "pid i32 | the pid of the process",
        "binary s | the executable",
        "proc_ref s | its address, such as `host/0.3`; for a dump from another tool, the name "
        "that the tool uses",
        "capture_mode s | `python_only`, or `native` if it contains frames of other languages",
        "warnings_json s | warnings of the program that created the dump",
    ),
    "pyspy_stack_traces": _table(
        "Threads in dumps.",
        _DUMP,
        _STORED,
        _OF,
        _THREAD,
        "thread_name s? | its name",
        "os_thread_id u64? | the thread id of the operating system",
        "active b | whether it is running",
        "owns_gil b | whether it holds the GIL",
    ),
    "pyspy_frames": _table(
        "Calls in the stacks of dumps.",
        _DUMP,
        _STORED,
        _OF,
        _THREAD,
        _DEPTH,
        "name s | the function",
        "filename s | its file",
        "module s? | for other languages: the library",
        "short_filename s? | the file relative to the module search path",
        "line i32 | the line; 0 if it is not known",
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
        "repr s? | the value, truncated",
    ),
    "heap": _table(
        "Heap snapshots: a row for each call that has allocated memory while it was tracked, the "
        "largest 10,000 of each process.",
        "snapshot_id s | the snapshot; the same for all processes of one request",
        "timestamp_us i64 | when it was stored, in microseconds since the epoch",
        "pid i32 | the pid of the process",
        "kind s | `left`: memory that was not freed at the end; `peak`: memory that was allocated "
        "when there was the most",
        "function s | the innermost Python function of the call",
        "file s | its file",
        "line i32 | the line; 0 if it is not known",
        "bytes u64 | the size of the memory",
        "allocations u64 | the number of allocations",
    ),
    "procs": _table(
        "The processes of a host; exited processes as long as their rows are kept.",
        "timestamp_us i64 | the time of the query",
        "mesh s | the name of the process mesh; `root` for the program, `agent` for the "
        "agent of a host",
        "mesh_id u64 | the id of that mesh",
        "rank u64 | the rank in that mesh",
        "incarnation u64 | the number of earlier processes in its slot",
        "pid i64 | its process id",
        "state s | `running`, `sleeping`, `waiting`, `stopped`, `zombie`, `idle`, or `dead`",
        "cpu_s f64? | CPU time that it has used, in seconds",
        "rss_bytes i64? | resident memory",
        "threads i64? | the number of threads",
        "started_us i64 | when its recording began",
        "kept_bytes i64 | the size of its stored events in bytes",
    ),
    "hosts": _table(
        "The hosts of the program.",
        "timestamp_us i64 | the time of the query",
        "cpus i64 | the number of CPUs that this job can use",
        "load_1m f64 | the load average of the last minute",
        "memory_total_bytes i64 | total memory",
        "memory_free_bytes i64 | available memory",
        "boot_us i64 | when it was booted, in microseconds since the epoch",
        "gpus i64? | the number of GPUs; null if `pynvml` is not installed",
        "gpus_json s? | name, memory and utilization of each GPU",
    ),
    "actor_nodes": _table(
        "Current actors and their activity.",
        "timestamp_us i64 | the time of the query",
        "id u64 | the actor, an `actors.id`",
        "mesh_id u64 | its mesh",
        "rank u64 | its rank in the mesh",
        "actor s | the name of its mesh",
        "actor_type s | its class",
        "actor_status s | `processing` while it serves a message, otherwise `idle`",
        "last_message_handler s | the endpoint that was started last",
        "messages_processed u64 | the number of messages that it has served",
        "queue_depth u64 | the number of queued messages",
    ),
    "active_handlers": _table(
        "Messages that actors are processing now.",
        "timestamp_us i64 | the time of the query",
        "actor_id u64 | the actor, an `actors.id`",
        "mesh_id u64 | its mesh",
        "actor s | the name of its mesh",
        "name s | the endpoint",
        "rank u64 | the rank that was called",
        "from_proc s | the process of the sender",
        "call u64? | the port that receives the reply; null if no reply is expected",
        "message_id u64? | the message, as in `message_status_events`, where its status `active` "
        "has the start time; null if no reply is expected",
    ),
    "waits": _table(
        "Calls whose reply is currently awaited.",
        "timestamp_us i64 | the time of the query",
        "actor_id u64? | the waiting actor; null if it is not known",
        "actor s? | the name of its mesh",
        "running s? | the endpoint in which it waits",
        "since_us i64? | when the wait began; known only for waits without a timeout",
        "waited_ms f64? | how long it has waited, in milliseconds",
        "call u64 | the port that receives the reply",
        "endpoint s? | the endpoint that was called",
        "for_actor_id u64 | the actor that has not replied, an `actors.id`",
        "for_mesh_id u64 | its mesh",
        "for_proc s | its process",
    ),
    "stacks": _table(
        "Current Python stacks of all threads of all processes, and of suspended asyncio tasks.",
        "timestamp_us i64 | the time of the query",
        "thread s | the name of the thread",
        "thread_id u64 | the Python id of the thread",
        "task s? | the name of the suspended task; null for the stack of the thread itself",
        "task_id u64? | the id of that task; names need not be unique",
        "depth i64 | 0 for the innermost frame",
        "function s | the function",
        "file s | its file",
        "line i64 | the line",
    ),
    "collectives": _table(
        "The latest operations of the process groups of `torch.distributed`, up to 256 for each "
        "process; also of processes that are stopped.",
        "timestamp_us i64 | the time of the query",
        "mesh s | the name of the process mesh",
        "world s | the address of the store of the world, which its members share",
        "process_group s | the name of the group, which its members share",
        "sequence i64 | the number of earlier operations of the group; for `send` and `recv`, with "
        "the same peer",
        "operation s | its name, such as `all_reduce`",
        "rank i64 | the rank of the process in the world",
        "peer i64? | the root or peer, a rank of the group; null if there is none",
        "shape s | type and shape of the first tensor, such as `float32[4, 8]`",
        "bytes i64 | the size of its tensors",
        "entered_us i64 | when the process called it",
        "left_us i64? | when it ended, or was noticed to have ended, up to a tenth of a second "
        "later; null while it runs",
        "is_async b | whether the caller waits for it later",
        "is_failed b | whether it failed",
        "file s | the source file of the caller",
        "line i64 | the line",
        "function s | the function",
    ),
    "steps": _table(
        "The latest training steps, up to 512 for each process; a step ends when the first "
        "optimizer of the process has changed its parameters, or at `mark_step`.",
        "timestamp_us i64 | the time of the query",
        "mesh s | the name of the process mesh",
        "rank i64 | the rank of the process in the world of `torch.distributed`, or in the mesh",
        "step i64 | the number of earlier steps of the process, or the number for `mark_step`",
        "began_us i64 | when the previous step ended",
        "duration_us i64 | the time since then",
        "input_us i64 | how long it waited for a data loader",
        "communication_us i64 | how long at least one collective was in progress, which includes "
        "the wait for slower ranks",
        "compute_us i64 | the rest of the duration",
        "pid i64 | the pid of the process",
    ),
    "debug_sessions": _table(
        "Code that is paused until a client attaches with `mesh debug`.",
        "timestamp_us i64 | the time of the query",
        "id s | the session",
        "kind s | `breakpoint`, or `post_mortem` at a raised exception",
        "actor_id u64? | the paused actor, an `actors.id`; null outside actors",
        "actor s? | the name of its mesh",
        "mesh s | the name of the process mesh",
        "rank i64 | the rank in the mesh of the actor, or of the process outside actors",
        "function s | the function in which it is paused",
        "file s | the file",
        "line i64 | the line",
        "since_us i64 | when the pause began, in microseconds since the epoch",
        "attached b | whether a client is attached",
    ),
}

TABLES: Mapping[str, pa.Schema] = {name: schema_of(doc) for name, doc in TABLE_DOCS.items()}
