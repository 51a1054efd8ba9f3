"""Queries over Flight SQL, with the standard driver."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pytest
from pyarrow import flight
from shards import Shards, spread

from mesh_telemetry._query.coverage import QueryResult
from mesh_telemetry._query.deadline import Cancellation
from mesh_telemetry._query.query import Query
from mesh_telemetry._query.stream import Stream
from mesh_telemetry._serve.flight import FlightSqlServer, _cancelled_with
from mesh_telemetry._serve.query_routes import QueryArguments
from mesh_telemetry._serve.scopes import Tokens

dbapi = pytest.importorskip("adbc_driver_flightsql.dbapi")

TOKEN = "a read token"
TOKENS = Tokens(TOKEN, "an act token")
HEADER = "adbc.flight.sql.authorization_header"
LIMIT_S = 60.0


@pytest.fixture
def shards() -> Shards:
    table = pa.table({"id": pa.array(range(20), pa.int64()), "name": ["a", "b"] * 10})
    return spread({"t": table, "u": table.slice(0, 3)}, 3, random.Random(1))


class ShardQueries:
    """Executes queries on shards."""

    def __init__(self, shards: Shards, schemas: Mapping[str, pa.Schema]) -> None:
        self._shards = shards
        self._schemas = schemas

    def arrow(self, query: QueryArguments, cancellation: Cancellation) -> QueryResult:
        sql, parameters, as_of_us = query
        return Query(sql, parameters, self._schemas).run(self._shards.ask, until_us=as_of_us)

    def columns(self, sql: str, parameters: list[object], cancellation: Cancellation) -> pa.Schema:
        return Query(sql, parameters, self._schemas).schema

    def json(self, query: QueryArguments, cancellation: Cancellation) -> bytes:
        raise AssertionError("Flight has no JSON")

    def stream(self, query: QueryArguments, cancellation: Cancellation) -> Stream:
        raise AssertionError("Flight SQL sends whole answers")


@pytest.fixture
def server(shards: Shards) -> Iterator[FlightSqlServer]:
    schemas = shards.hosts["host0"].schemas

    with FlightSqlServer(ShardQueries(shards, schemas), schemas, TOKENS) as opened:
        yield opened


@pytest.fixture
def connection(server: FlightSqlServer) -> Iterator[object]:
    with dbapi.connect(
        server.url, db_kwargs={HEADER: f"Bearer {TOKEN}"}, autocommit=True
    ) as opened:
        yield opened


def fetched(connection, sql: str, parameters: object = None) -> pa.Table:  # noqa: ANN001
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetch_arrow_table()


def test_a_driver_queries_all_hosts(connection: object) -> None:
    sql = "SELECT name, count(*) AS n FROM t GROUP BY name ORDER BY name"
    assert fetched(connection, sql).to_pylist() == [{"name": "a", "n": 10}, {"name": "b", "n": 10}]


def test_a_driver_binds_parameters(connection: object) -> None:
    sql = "SELECT count(*) AS n FROM t WHERE id < ? AND name = ?"
    assert fetched(connection, sql, (10, "a")).to_pylist() == [{"n": 5}]
    assert fetched(connection, sql, (10, "a' OR 'a' = 'a")).to_pylist() == [{"n": 0}]


def test_a_driver_lists_tables_and_columns(connection) -> None:  # noqa: ANN001
    assert connection.adbc_get_table_types() == ["TABLE"]
    assert connection.adbc_get_info()["vendor_name"] == "mesh-telemetry"
    found = connection.adbc_get_objects(depth="all").read_all().to_pylist()
    tables = found[0]["catalog_db_schemas"][0]["db_schema_tables"]
    assert [each["table_name"] for each in tables] == ["t", "u"]
    assert [each["column_name"] for each in tables[0]["table_columns"]] == ["id", "name"]
    assert connection.adbc_get_table_schema("t").names == ["id", "name"]


def test_a_driver_gets_the_reason_of_an_error(connection: object) -> None:
    with pytest.raises(Exception, match="no table nowhere"):
        fetched(connection, "SELECT * FROM nowhere")


def test_requests_without_a_valid_token_are_refused(server: FlightSqlServer) -> None:
    wrong = {HEADER: "Bearer wrong"}
    with (
        pytest.raises(Exception, match="missing or invalid token"),
        dbapi.connect(server.url, db_kwargs=wrong, autocommit=True) as opened,
    ):
        fetched(opened, "SELECT 1")


def test_commands_other_than_flight_sql_are_refused(server: FlightSqlServer) -> None:
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())])
    with flight.connect(server.url) as client:
        for command in [b"", b"\xff\xff", b"\x0a\x05hello"]:
            with pytest.raises(flight.FlightServerError, match="Flight SQL client"):
                client.get_flight_info(flight.FlightDescriptor.for_command(command), options)


class _CallContext:
    """The context of a call, which is freed when the call has ended."""

    def __init__(self) -> None:
        self.is_used, self.go_on = threading.Event(), threading.Event()

    def is_cancelled(self) -> bool:
        self.is_used.set()
        assert self.go_on.wait(LIMIT_S)
        return False


def test_a_call_does_not_return_while_its_context_is_in_use() -> None:
    context = _CallContext()

    def serve() -> None:
        with _cancelled_with(context):
            assert context.is_used.wait(LIMIT_S)

    call = threading.Thread(target=serve)
    call.start()
    assert context.is_used.wait(LIMIT_S)
    call.join(0.2)
    assert call.is_alive(), "the context would be freed while another thread is inside"
    context.go_on.set()
    call.join(LIMIT_S)
    assert not call.is_alive()
