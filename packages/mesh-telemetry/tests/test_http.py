"""Queries over HTTP: authorization and results."""

from __future__ import annotations

import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from http.client import HTTPConnection
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest
from recorded_program import config

from mesh_telemetry import Telemetry
from mesh_telemetry._errors import CoverageError, QueryError, TelemetryError
from mesh_telemetry._query.coverage import Coverage, HostFailure, QueryResult, TransferStats
from mesh_telemetry._query.deadline import Cancellation
from mesh_telemetry._query.plain_json import plain_result
from mesh_telemetry._query.stream import Stream
from mesh_telemetry._serve.http import HttpServer
from mesh_telemetry._serve.query_routes import ARROW, QueryArguments, query_routes
from mesh_telemetry._serve.query_routes import COVERAGE as COVERAGE_KEY
from mesh_telemetry._serve.routes import Reply, Request, Route, json_reply
from mesh_telemetry._serve.scopes import Scope, Tokens

TOKEN = "a read token"
TOKENS = Tokens(TOKEN, "an act token")
COVERAGE = Coverage(("a", "b"), ("a",), (HostFailure("b", "died"),), (TransferStats("t", 1, 9),))
TABLE = pa.table(
    {
        "x": [float("nan"), 1.5],
        "t": [datetime(2026, 1, 2), None],
        "d": [Decimal("1.50"), None],
        "b": [b"\x00", None],
        "l": [[1, None], None],
    }
)


class Queries:
    """Returns the results that the test sets."""

    def __init__(self, batches: Iterator[pa.RecordBatch] | None = None) -> None:
        self._batches = batches

    def arrow(self, query: QueryArguments, cancellation: Cancellation) -> QueryResult:
        sql, parameters, as_of_us = query
        if sql == "bad":
            raise QueryError("no such thing: ask for another")
        if sql == "nobody":
            raise CoverageError("no host replied")
        if sql == "echo":
            return QueryResult(pa.table({"p": [json.dumps([parameters, as_of_us])]}), COVERAGE)
        return QueryResult(TABLE, COVERAGE)

    def json(self, query: QueryArguments, cancellation: Cancellation) -> bytes:
        return json.dumps(plain_result(self.arrow(query, cancellation))).encode()

    def columns(self, sql: str, parameters: list[object], cancellation: Cancellation) -> pa.Schema:
        return TABLE.schema

    def stream(self, query: QueryArguments, cancellation: Cancellation) -> Stream:
        def made() -> Iterator[pa.RecordBatch]:
            if query[0] == "bad":
                raise QueryError("no such thing: ask for another")
            assert self._batches is not None, "the test streams"
            yield from self._batches

        return Stream(TABLE.schema, made(), lambda: COVERAGE)


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with HttpServer(query_routes(Queries()), TOKENS) as opened:
        yield opened


def request(
    server: HttpServer, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    sent = {"Authorization": f"Bearer {TOKEN}"} | headers
    asked = urllib.request.Request(server.url + path, body, sent)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(asked, timeout=20) as reply:
            return reply.status, dict(reply.headers), reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def query(server: HttpServer, **question: object) -> tuple[int, dict[str, str], bytes]:
    return request(server, "/query", json.dumps(question).encode())


def test_rows_are_returned_as_json_with_their_coverage(server: HttpServer) -> None:
    status, _, body = query(server, sql="rows")
    reply = json.loads(body)
    assert status == 200
    assert reply["rows"][0] == {
        "x": None,
        "t": "2026-01-02T00:00:00+00:00",
        "d": "1.50",
        "b": "AA==",
        "l": [1, None],
    }
    assert reply["coverage"]["failed"] == [{"host": "b", "cause": "died"}]
    assert reply["coverage"]["is_full"] is False


def test_rows_are_returned_as_arrow_if_the_client_accepts_it(server: HttpServer) -> None:
    body = json.dumps({"sql": "rows"}).encode()
    _, headers, stream = request(server, "/query", body, Accept=ARROW)
    assert pa.ipc.open_stream(stream).read_all().schema == TABLE.schema
    assert json.loads(headers["Mesh-Coverage"])["replied"] == ["a"]


def test_parameters_and_time_are_passed_to_the_query(server: HttpServer) -> None:
    _, _, body = query(server, sql="echo", params=[1, "x"], as_of=5)
    assert json.loads(json.loads(body)["rows"][0]["p"]) == [[1, "x"], 5]


@pytest.mark.parametrize("token", ["", "Bearer ", "Bearer wrong", TOKEN])
def test_requests_without_a_valid_token_are_refused(server: HttpServer, token: str) -> None:
    for path, body in [("/query", b'{"sql": "rows"}'), ("/openapi.json", None)]:
        status, _, reply = request(server, path, body, Authorization=token)
        assert (status, json.loads(reply)["error"]["code"]) == (401, "unauthorized")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"sql": "bad"}', 400, "bad_query"),
        (b'{"sql": "nobody"}', 502, "no_coverage"),
        (b"not json", 400, "bad_json"),
        (b"[]", 400, "bad_json"),
        (b'{"sql": 5}', 400, "bad_json"),
        (b'{"sql": "rows", "params": "x"}', 400, "bad_json"),
        (b'{"sql": "rows", "as_of": "now"}', 400, "bad_json"),
        (b'{"sql": "' + b"x" * (1 << 20) + b'"}', 413, "too_long"),
    ],
)
def test_failed_requests_have_an_error_code(
    server: HttpServer, body: bytes, status: int, code: str
) -> None:
    try:
        found, _, reply = request(server, "/query", body)
    except (urllib.error.URLError, ConnectionError):
        # The request is rejected before all of it has been sent.
        assert status == 413
        return
    assert (found, json.loads(reply)["error"]["code"]) == (status, code)


def test_the_server_describes_its_api(server: HttpServer) -> None:
    status, headers, body = request(server, "/openapi.json")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert "/query" in json.loads(body)["paths"]
    assert request(server, "/other")[0] == 404


def test_every_route_of_a_program_is_described(place: Path) -> None:
    with Telemetry(config(place)) as telemetry, telemetry.serve() as serving:
        routes = serving._http.routes
        token = f"Bearer {serving.token}"
        _, _, body = request(serving._http, "/openapi.json", Authorization=token)
    paths = json.loads(body)["paths"]
    described = {
        (method.upper(), re.sub(r"{\w+}", "*", path)): (path, operation)
        for path, operations in paths.items()
        for method, operation in operations.items()
        if method != "parameters"
    }
    found = set()
    for route in routes:
        # All files of the dashboard share the route of their folder.
        folder = re.sub(r"^/dash/[^/]+$", "/dash/*", route.path)
        found.add((route.method, folder))
        assert (route.method, folder) in described, f"{route.method} {route.path} is not described"
        path, operation = described[route.method, folder]
        assert operation["summary"]
        assert "default" in operation["responses"]
        assert (operation["security"] == []) is (route.scope is Scope.OPEN)
        parameters = [*paths[path].get("parameters", []), *operation.get("parameters", [])]
        named = [one["name"] for one in parameters if one["in"] == "path"]
        assert named == re.findall(r"{(\w+)}", path)
    assert found == set(described), "what is described is not there"


def test_a_port_in_use_raises_an_error(server: HttpServer) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(TelemetryError, match="choose another"):
        HttpServer(query_routes(Queries()), TOKENS, port)


def test_a_route_can_take_over_the_connection() -> None:
    def echo(client: socket.socket) -> None:
        client.sendall(client.recv(100).upper())

    route = Route("POST", "/echo/*", lambda _: Reply("echo", b"", take_over=echo), Scope.READ)
    with HttpServer([route], TOKENS) as server:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        for token, status in (("wrong", b"401"), (TOKEN, b"101")):
            with socket.create_connection((host, int(port)), 20) as client:
                head = "POST /echo/x HTTP/1.1\r\nHost: localhost"
                access = f"Authorization: Bearer {token}"
                client.sendall(f"{head}\r\n{access}\r\nContent-Length: 0\r\n\r\n".encode())
                said = client.makefile("rb")
                assert said.readline().split()[1] == status
                if status == b"101":
                    while said.readline() != b"\r\n":
                        continue
                    client.sendall(b"hello")
                    assert said.read() == b"HELLO"


class Watching:
    """A route that completes on request, or when the client has disconnected."""

    def __init__(self) -> None:
        self.is_asked, self.is_gone = Event(), Event()
        self.release = Event()
        self.cancelled: list[bool] = []

    def __call__(self, asked: Request) -> Reply:
        with asked.cancellation() as cancellation:
            cancellation.call(self.is_gone.set)
            cancellation.call(self.release.set)
            self.is_asked.set()
            self.release.wait(20)
        self.cancelled.append(cancellation.is_cancelled)
        return json_reply({})


def test_a_route_is_notified_when_its_client_disconnects() -> None:
    watching = Watching()
    with HttpServer([Route("GET", "/", watching, Scope.READ)], TOKENS) as server:
        asking = HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]), timeout=20)
        asking.request("GET", "/", headers={"Authorization": f"Bearer {TOKEN}"})
        assert watching.is_asked.wait(20)
        assert not watching.is_gone.is_set()
        asking.close()
        assert watching.is_gone.wait(20)


def test_a_pipelined_request_is_not_a_disconnect() -> None:
    watching = Watching()
    with HttpServer([Route("GET", "/", watching, Scope.READ)], TOKENS) as server:
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 20) as client:
            access = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}"
            head = f"GET / HTTP/1.1\r\n{access}\r\n\r\n".encode()
            client.sendall(head)
            assert watching.is_asked.wait(20)
            client.sendall(head)
            watching.release.set()
            with client.makefile("rb") as said:
                while len(watching.cancelled) < 2:
                    assert said.readline()
    assert watching.cancelled == [False, False]


def test_rows_are_streamed_on_request() -> None:
    batches = TABLE.to_batches(max_chunksize=1)
    body = json.dumps({"sql": "rows", "stream": True}).encode()
    with HttpServer(query_routes(Queries(iter(batches))), TOKENS) as server:
        status, headers, found = request(server, "/query", body, Accept=ARROW)
        assert (status, headers["Transfer-Encoding"]) == (200, "chunked")
        with pa.ipc.open_stream(found) as reader:
            read = [reader.read_next_batch_with_custom_metadata() for _ in range(3)]
        assert [part.batch.num_rows for part in read] == [1, 1, 0]
        coverage = json.loads(read[2].custom_metadata[COVERAGE_KEY.encode()])
        assert coverage["failed"] == [{"host": "b", "cause": "died"}]
        assert request(server, "/query", body)[0] == 400
        bad = json.dumps({"sql": "bad", "stream": True}).encode()
        assert request(server, "/query", bad, Accept=ARROW)[0] == 400


def test_a_query_is_cancelled_when_its_client_disconnects() -> None:
    is_closed = Event()

    def endless() -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield TABLE.to_batches()[0]
        finally:
            is_closed.set()

    body = json.dumps({"sql": "rows", "stream": True}).encode()
    with HttpServer(query_routes(Queries(endless())), TOKENS) as server:
        port = int(server.url.rpartition(":")[2])
        asking = HTTPConnection("127.0.0.1", port, timeout=20)
        headers = {"Authorization": f"Bearer {TOKEN}", "Accept": ARROW}
        asking.request("POST", "/query", body, headers)
        with asking.getresponse() as reply:
            assert reply.read(100)
            assert not is_closed.is_set()
        asking.close()
        assert is_closed.wait(20)
