"""Arrow Flight SQL server on the loopback interface."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._events.process_socket import short_socket_path
from mesh_telemetry._query.deadline import Cancellation
from mesh_telemetry._serve.accept_loop import AcceptLoop, connection_limiter, listener
from mesh_telemetry._serve.access import check_sql
from mesh_telemetry._serve.flight_messages import (
    Fields,
    field_bytes,
    message_of,
    packed,
    texts,
    unpacked,
)
from mesh_telemetry._serve.flight_relay import RelayedConnection, ServerConnections
from mesh_telemetry._serve.query_routes import Queries
from mesh_telemetry._serve.routes import RequestError
from mesh_telemetry._serve.scopes import Scope, Tokens

if TYPE_CHECKING:
    from mesh_core.spi import ConnectionLimiter

__all__ = ["FlightSqlServer"]

_SOCKET = "flight"
_UNAUTHENTICATED_MAX = 32
# A connection counts as authenticated when the first rows are sent on it, which may take a while.
_DEADLINE_S = 60.0
_CATALOG, _SCHEMA = "mesh", "public"
_STOP_TIMEOUT_S = 5.0
_CANCELLED_POLL_S = 0.1
_HANDLE_SPLIT = b"\0"
_TABLES = pa.schema(
    [
        ("catalog_name", pa.string()),
        ("db_schema_name", pa.string()),
        pa.field("table_name", pa.string(), nullable=False),
        pa.field("table_type", pa.string(), nullable=False),
    ]
)
_TABLE_SCHEMA = pa.field("table_schema", pa.binary(), nullable=False)
_CATALOGS = pa.schema([pa.field("catalog_name", pa.string(), nullable=False)])
_DB_SCHEMAS = pa.schema(
    [("catalog_name", pa.string()), pa.field("db_schema_name", pa.string(), nullable=False)]
)
_TABLE_TYPES = pa.schema([pa.field("table_type", pa.string(), nullable=False)])
_INFO_VALUE = pa.dense_union(
    [
        pa.field("string_value", pa.string()),
        pa.field("bool_value", pa.bool_()),
        pa.field("bigint_value", pa.int64()),
        pa.field("int32_bitmask", pa.int32()),
        pa.field("string_list", pa.list_(pa.string())),
        pa.field(
            "int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.field("$data$", pa.int32())))
        ),
    ]
)
_INFO = pa.schema(
    [
        pa.field("info_name", pa.uint32(), nullable=False),
        pa.field("value", _INFO_VALUE, nullable=False),
    ]
)
# Name, version and Arrow version of the server, with the numbers of Flight SQL.
_INFO_TEXTS = {0: "mesh-telemetry", 1: "1", 2: pa.__version__}


class FlightSqlServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves Flight SQL clients until it is closed.

    It keeps no state between calls: a prepared statement is contained in its handle.

    Args:
        queries: Runs queries; it is called in several threads.
        schemas: The existing tables.
        tokens: Each call requires one of them as `authorization: Bearer <token>`. Both tokens
            permit only reading.
        port: The port on 127.0.0.1; 0 for any free port.
        limiter: Decides which connections stay open.

    Raises:
        TelemetryError: The port is taken.
    """

    def __init__(
        self,
        queries: Queries,
        schemas: Mapping[str, pa.Schema],
        tokens: Tokens,
        port: int = 0,
        limiter: ConnectionLimiter | None = None,
    ) -> None:
        self._queries = queries
        self._schemas = schemas
        listening = listener(port)
        try:
            self._entry = self._listen(tokens)
        except BaseException:
            listening.close()
            raise
        self._limiter = limiter or connection_limiter(_UNAUTHENTICATED_MAX, _DEADLINE_S)
        self._loop = AcceptLoop(listening, self._limiter, self._relayed, "mesh-telemetry-relay")
        self._servers = ServerConnections(self._loop, self._connect)
        self._loop.start()

    def _listen(self, tokens: Tokens) -> int:
        """Start gRPC on an unnamed Unix socket, and return a descriptor of the socket."""
        folder = Path(tempfile.mkdtemp(prefix="mesh-flight-"))
        try:
            with short_socket_path(folder, _SOCKET) as path:
                super().__init__(f"grpc+unix://{path}", middleware={"token": _TokenCheck(tokens)})
            return os.open(folder / _SOCKET, os.O_PATH | os.O_CLOEXEC)
        except (OSError, pa.ArrowException) as error:
            raise TelemetryError(f"the Flight server cannot listen ({error})") from error
        finally:
            # The socket is reached through its descriptor, so a killed program leaves no file
            # behind.
            shutil.rmtree(folder, ignore_errors=True)

    def _relayed(self, client: socket.socket) -> RelayedConnection:
        return RelayedConnection(self._loop, client, self._servers)

    def _connect(self) -> socket.socket:
        """Connect to the gRPC server behind the listener."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.setblocking(False)
            sock.connect(f"/proc/self/fd/{self._entry}")
        except OSError:
            sock.close()
            raise
        return sock

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"grpc://127.0.0.1:{self._loop.port}"

    def close(self) -> None:
        """Stop serving."""
        if self._entry < 0:
            return
        self._loop.close()
        self._servers.close()
        os.close(self._entry)
        self._entry = -1
        # `shutdown` waits for running calls; it runs in a separate thread to bound the wait here.
        stopping = Thread(target=self.shutdown, name="mesh-telemetry-flight", daemon=True)
        stopping.start()
        stopping.join(_STOP_TIMEOUT_S)

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_flight_info(
        self, context: Any, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Return the columns of a command; its ticket is the command itself."""
        name, fields = _command(descriptor.command)
        schema = self._schema_of(context, name, fields)
        endpoint = flight.FlightEndpoint(flight.Ticket(descriptor.command), [])
        return flight.FlightInfo(schema, descriptor, [endpoint], -1, -1)

    def get_schema(self, context: Any, descriptor: flight.FlightDescriptor) -> Any:
        """Return the columns of a command."""
        return flight.SchemaResult(self._schema_of(context, *_command(descriptor.command)))

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Return the rows of a command."""
        name, fields = _command(ticket.ticket)
        return flight.RecordBatchStream(self._rows_of(context, name, fields))

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """List the actions of prepared statements."""
        return [
            ("CreatePreparedStatement", "Plan a query."),
            ("ClosePreparedStatement", "Close a prepared query."),
        ]

    def do_action(self, context: Any, action: flight.Action) -> Iterator[flight.Result]:
        """Create or close a prepared statement."""
        if action.type == "ClosePreparedStatement":
            return
        if action.type != "CreatePreparedStatement":
            raise flight.FlightServerError(
                f"unknown action {action.type}: only read queries are supported"
            )
        _, fields = _command(action.body.to_pybytes())
        sql = field_bytes(fields, 1)
        _check_sql(sql.decode())
        reply = [(1, sql + _HANDLE_SPLIT)]
        try:
            with _cancelled_with(context) as cancellation:
                columns = self._queries.columns(sql.decode(), [], cancellation)
            reply.append((2, bytes(columns.serialize())))
        except TelemetryError:
            # The query has parameters. Any other error is reported when they are bound.
            pass
        yield flight.Result(packed("ActionCreatePreparedStatementResult", reply))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Add the parameters of a prepared statement to its handle."""
        name, fields = _command(descriptor.command)
        if name != "CommandPreparedStatementQuery":
            raise flight.FlightServerError("the tables are read-only: send only read queries")
        table = reader.read_all()
        if table.num_rows > 1:
            raise flight.FlightServerError("several rows of parameters: bind one row per query")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        sql = field_bytes(fields, 1).partition(_HANDLE_SPLIT)[0]
        handle = sql + _HANDLE_SPLIT + sink.getvalue().to_pybytes()
        writer.write(pa.py_buffer(message_of([(1, handle)])))

    def _schema_of(self, context: Any, name: str, fields: Fields) -> pa.Schema:
        if name in ("CommandStatementQuery", "CommandPreparedStatementQuery"):
            sql, parameters = _statement(name, fields)
            with _cancelled_with(context) as cancellation:
                return _flight_errors(lambda: self._queries.columns(sql, parameters, cancellation))
        return self._rows_of(context, name, fields).schema

    def _rows_of(self, context: Any, name: str, fields: Fields) -> pa.Table:
        if name in ("CommandStatementQuery", "CommandPreparedStatementQuery"):
            sql, parameters = _statement(name, fields)
            with _cancelled_with(context) as cancellation:
                query = (sql, parameters, None)
                return _flight_errors(lambda: self._queries.arrow(query, cancellation).table)
        if name == "CommandGetCatalogs":
            return pa.Table.from_pylist([{"catalog_name": _CATALOG}], _CATALOGS)
        if name == "CommandGetDbSchemas":
            rows = [{"catalog_name": _CATALOG, "db_schema_name": _SCHEMA}]
            return pa.Table.from_pylist(rows if _matches(fields, 2, _SCHEMA) else [], _DB_SCHEMAS)
        if name == "CommandGetTableTypes":
            return pa.Table.from_pylist([{"table_type": "TABLE"}], _TABLE_TYPES)
        if name == "CommandGetTables":
            return self._tables(fields)
        if name == "CommandGetSqlInfo":
            return _sql_info(fields)
        raise flight.FlightServerError(f"{name} is not supported: send only read queries")

    def _tables(self, fields: Fields) -> pa.Table:
        has_schema = bool(fields.get(5, [0])[-1])
        kinds = texts(fields, 4)
        rows = [
            {
                "catalog_name": _CATALOG,
                "db_schema_name": _SCHEMA,
                "table_name": table,
                "table_type": "TABLE",
                "table_schema": bytes(schema.serialize()),
            }
            for table, schema in sorted(self._schemas.items())
            if _matches(fields, 3, table)
            and _matches(fields, 2, _SCHEMA)
            and (not kinds or "TABLE" in kinds)
        ]
        schema = _TABLES.append(_TABLE_SCHEMA) if has_schema else _TABLES
        return pa.Table.from_pylist(rows, schema)


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens = tokens

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> None:
        sent = [each for name, each in headers.items() if name.lower() == "authorization"]
        given = sent[0][0] if sent and sent[0] else ""
        if self._tokens.scope_of(given) is Scope.OPEN:
            raise flight.FlightUnauthenticatedError(
                "missing or invalid token: send authorization: Bearer <token>"
            )


@contextmanager
def _cancelled_with(context: Any) -> Iterator[Cancellation]:
    """Yield a cancellation that is triggered when the client cancels the call or disconnects."""
    cancellation = Cancellation()
    is_over, using_context = Event(), Lock()

    def watch() -> None:
        # gRPC does not notify the server of this, so it is polled.
        while not is_over.wait(_CANCELLED_POLL_S):
            # The context is freed when the call has ended; using it then would crash the program.
            with using_context:
                if is_over.is_set():
                    return
                if context.is_cancelled():
                    cancellation.cancel()
                    return

    Thread(target=watch, name="mesh-telemetry-flight-call", daemon=True).start()
    try:
        yield cancellation
    finally:
        with using_context:
            is_over.set()


def _command(message: bytes) -> tuple[str, Fields]:
    try:
        return unpacked(message)
    except (ValueError, UnicodeDecodeError) as error:
        raise flight.FlightServerError(str(error)) from error


def _statement(name: str, fields: Fields) -> tuple[str, list[object]]:
    """Return the query of a command, and its parameters."""
    handle = field_bytes(fields, 1)
    text, _, bound = handle.partition(_HANDLE_SPLIT)
    sql = (handle if name == "CommandStatementQuery" else text).decode()
    _check_sql(sql)
    if name == "CommandStatementQuery" or not bound:
        return sql, []
    table = pa.ipc.open_stream(bound).read_all()
    return sql, [column[0] for column in table.columns] if table.num_rows else []


def _check_sql(sql: str) -> None:
    try:
        check_sql(sql, Scope.READ)
    except RequestError as refused:
        raise flight.FlightUnauthorizedError(refused.text) from refused


def _flight_errors(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except TelemetryError as error:
        raise flight.FlightServerError(str(error)) from error


def _matches(fields: Fields, number: int, name: str) -> bool:
    """Return whether a name matches a LIKE pattern; True without a pattern."""
    if number not in fields:
        return True
    pattern = "".join(
        {"%": ".*", "_": "."}.get(sign, re.escape(sign))
        for sign in field_bytes(fields, number).decode()
    )
    return re.fullmatch(pattern, name) is not None


def _sql_info(fields: Fields) -> pa.Table:
    wanted = [each for each in fields.get(1, []) if isinstance(each, int)]
    found = {n: text for n, text in _INFO_TEXTS.items() if not wanted or n in wanted}
    values = pa.UnionArray.from_dense(
        pa.array([0] * len(found), pa.int8()),
        pa.array(range(len(found)), pa.int32()),
        [
            pa.array(found.values(), pa.string()),
            *(pa.array([], _INFO_VALUE.field(at).type) for at in range(1, 6)),
        ],
        [_INFO_VALUE.field(at).name for at in range(6)],
    )
    return pa.Table.from_arrays([pa.array(found.keys(), pa.uint32()), values], schema=_INFO)
