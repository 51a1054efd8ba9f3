"""Peers without a token cost the servers little, and do not block other clients."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyarrow import flight

from mesh_core.spi import ConnectionLimiter
from mesh_core.testing import wait_until
from mesh_telemetry._query.coverage import Coverage, QueryResult
from mesh_telemetry._query.deadline import Cancellation
from mesh_telemetry._query.stream import Stream
from mesh_telemetry._serve.flight import FlightSqlServer
from mesh_telemetry._serve.flight_messages import packed
from mesh_telemetry._serve.flight_relay import DataFrameScan
from mesh_telemetry._serve.http import HttpServer
from mesh_telemetry._serve.pending_request import HEAD_LEN_MAX
from mesh_telemetry._serve.query_routes import QueryArguments
from mesh_telemetry._serve.routes import Reply, Request, Route, json_reply
from mesh_telemetry._serve.scopes import Scope, Tokens

LIMIT_S = 30.0
TOKENS = Tokens("a read token", "an act token")
ACCESS = {"Authorization": "Bearer a read token"}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes.fromhex("000000 04 00 00000000")
TABLE = pa.table({"x": pa.array(range(1_000_000), pa.int64())})


def limiter(deadline_s: float = 600.0, authenticated_max: int = 8) -> ConnectionLimiter:
    return ConnectionLimiter(
        authenticated_max=authenticated_max,
        unauthenticated_max=4,
        deadline_s=deadline_s,
        grace_s=0.0,
        bytes_max=1 << 20,
    )


class Servers:
    """A server that replies and one whose reply is delayed, both with few connection slots."""

    def __init__(self, admitted: ConnectionLimiter) -> None:
        self.limiter = admitted
        self.release = threading.Event()
        routes = [
            Route("GET", "/", lambda _: Reply("text/plain", b"page"), Scope.OPEN),
            Route("GET", "/read", lambda _: json_reply({}), Scope.READ),
            Route("GET", "/wait", self._wait, Scope.READ),
            Route("POST", "/echo", lambda asked: Reply("text/plain", asked.body), Scope.READ),
        ]
        self.http = HttpServer(routes, TOKENS, limiter=admitted)

    def _wait(self, request: Request) -> Reply:
        self.release.wait(LIMIT_S)
        return json_reply({})

    def close(self) -> None:
        self.release.set()
        self.http.close()


@pytest.fixture
def servers() -> Iterator[Servers]:
    with closing(Servers(limiter())) as made:
        yield made


def connect(url: str) -> socket.socket:
    place = urlsplit(url)
    return socket.create_connection((place.hostname, place.port), LIMIT_S)


def ask(
    server: HttpServer, path: str = "/read", body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=LIMIT_S)
    with closing(connection):
        connection.request("GET" if body is None else "POST", path, body, ACCESS | headers)
        with connection.getresponse() as reply:
            return reply.status, reply.read()


def is_closed(sock: socket.socket) -> bool:
    """Wait until the peer closes a connection."""
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def status_of(sock: socket.socket) -> int:
    with sock.makefile("rb") as said:
        return int(said.readline().split()[1])


def test_idle_connections_are_closed_at_their_deadline() -> None:
    with closing(Servers(limiter(deadline_s=0.1))) as servers, connect(servers.http.url) as silent:
        assert is_closed(silent)
        assert servers.limiter.unauthenticated_count == 0


def is_cut_off(sock: socket.socket, piece: bytes, piece_count: int) -> bool:
    """Send pieces, and return whether the peer closes the connection before the last one."""
    try:
        for _ in range(piece_count):
            sock.sendall(piece)
    except ConnectionError:
        return True
    return False


def test_a_head_sent_byte_by_byte_does_not_extend_the_deadline() -> None:
    with closing(Servers(limiter(deadline_s=0.2))) as servers, connect(servers.http.url) as slow:
        wait_until(lambda: is_cut_off(slow, b"X", 1), LIMIT_S)


def test_an_endless_head_is_refused_at_its_limit(servers: Servers) -> None:
    with connect(servers.http.url) as endless:
        endless.sendall(b"GET /read HTTP/1.1\r\nX: " + b"x" * HEAD_LEN_MAX)
        assert status_of(endless) == 431


def test_an_endless_head_is_refused_even_with_a_token(servers: Servers) -> None:
    with connect(servers.http.url) as endless:
        head = b"GET /read HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a read token\r\n"
        endless.sendall(head + b"\r\n")
        assert status_of(endless) == 200
        assert is_cut_off(endless, b"X: " + b"x" * 1_000 + b"\r\n", 10_000)


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\r\n\r\n", b"GET /\r\n\r\n", PREFACE, b"\r\n\r\n"])
def test_malformed_requests_are_refused(servers: Servers, sent: bytes) -> None:
    with connect(servers.http.url) as peer:
        peer.sendall(sent)
        assert status_of(peer) == 400


def test_connections_without_a_token_use_no_thread(servers: Servers) -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(connect(servers.http.url)).sendall(b"GET / HTTP/1.1\r\n")
        wait_until(lambda: servers.limiter.unauthenticated_count == 4, LIMIT_S)
        assert threading.active_count() == before


def test_a_flood_evicts_the_oldest_connections_and_readers_are_served(servers: Servers) -> None:
    with ExitStack() as stack:
        flood = [stack.enter_context(connect(servers.http.url)) for _ in range(50)]
        assert ask(servers.http) == (200, b"{}")
        assert all(is_closed(one) for one in flood[:40])
        assert servers.limiter.unauthenticated_count <= 4


def test_a_flood_does_not_evict_a_waiting_reader(servers: Servers) -> None:
    answers: list[tuple[int, bytes]] = []
    waiting = threading.Thread(target=lambda: answers.append(ask(servers.http, "/wait")))
    waiting.start()
    wait_until(lambda: servers.limiter.authenticated_count == 1, LIMIT_S)
    with ExitStack() as stack:
        flood = [stack.enter_context(connect(servers.http.url)) for _ in range(50)]
        assert is_closed(flood[0])
        servers.release.set()
        waiting.join(LIMIT_S)
    assert answers == [(200, b"{}")]


def test_too_many_readers_get_status_503() -> None:
    with closing(Servers(limiter(authenticated_max=1))) as servers:
        waiting = threading.Thread(target=ask, args=(servers.http, "/wait"))
        waiting.start()
        wait_until(lambda: servers.limiter.authenticated_count == 1, LIMIT_S)
        assert ask(servers.http)[0] == 503
        servers.release.set()
        waiting.join(LIMIT_S)
        wait_until(lambda: servers.limiter.authenticated_count == 0, LIMIT_S)
        assert ask(servers.http)[0] == 200


def test_all_request_bodies_share_one_size_limit(servers: Servers) -> None:
    with connect(servers.http.url) as half:
        half.sendall(
            b"POST /echo HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a read token\r\n"
            b"Content-Length: 1000000\r\n\r\n"
        )
        wait_until(lambda: servers.limiter.byte_count == 1_000_000, LIMIT_S)
        assert ask(servers.http, "/echo", b"x" * 100_000)[0] == 503
        assert ask(servers.http, "/echo", b"x" * 10_000) == (200, b"x" * 10_000)
    wait_until(lambda: servers.limiter.byte_count == 0, LIMIT_S)


def test_open_pages_are_served_without_a_thread(servers: Servers) -> None:
    with connect(servers.http.url) as browser:
        browser.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with browser.makefile("rb") as said:
            assert said.read().endswith(b"\r\n\r\npage")
    assert servers.limiter.authenticated_count == 0


class OneTable:
    """Returns the same rows for all queries."""

    def arrow(self, query: QueryArguments, cancellation: Cancellation) -> QueryResult:
        return QueryResult(TABLE, Coverage((), (), (), ()))

    def columns(self, sql: str, parameters: list[object], cancellation: Cancellation) -> pa.Schema:
        return TABLE.schema

    def json(self, query: QueryArguments, cancellation: Cancellation) -> bytes:
        raise AssertionError("Flight has no JSON")

    def stream(self, query: QueryArguments, cancellation: Cancellation) -> Stream:
        raise AssertionError("Flight is not streamed")


@pytest.fixture
def flights() -> Iterator[FlightSqlServer]:
    with FlightSqlServer(OneTable(), {}, TOKENS, limiter=limiter()) as opened:
        yield opened


def fetched(server: FlightSqlServer) -> pa.Table:
    header = (b"authorization", ACCESS["Authorization"].encode())
    options = flight.FlightCallOptions(headers=[header], timeout=LIMIT_S)
    ticket = flight.Ticket(packed("CommandStatementQuery", [(1, b"select 1")]))
    with flight.connect(server.url) as client:
        return client.do_get(ticket, options).read_all()


def test_flight_rows_pass_through_the_front_listener(flights: FlightSqlServer) -> None:
    assert fetched(flights).equals(TABLE)


def test_a_flood_of_flight_connections_does_not_block_a_new_reader(
    flights: FlightSqlServer,
) -> None:
    with ExitStack() as stack:
        flood = [stack.enter_context(connect(flights.url)) for _ in range(30)]
        flood += [stack.enter_context(connect(flights.url)) for _ in range(30)]
        for half_open in flood[30:]:
            try:
                half_open.sendall(PREFACE + SETTINGS)
            except ConnectionError:
                continue
        assert fetched(flights).num_rows == TABLE.num_rows
        assert all(is_closed(one) for one in flood[:30])


def test_a_flood_of_flight_connections_does_not_evict_a_reader(flights: FlightSqlServer) -> None:
    header = (b"authorization", ACCESS["Authorization"].encode())
    options = flight.FlightCallOptions(headers=[header], timeout=LIMIT_S)
    wanted: Any = flight.FlightDescriptor.for_command(
        packed("CommandStatementQuery", [(1, b"select 1")])
    )
    with flight.connect(flights.url) as client, ExitStack() as stack:
        client.get_flight_info(wanted, options)
        reader = client.do_get(flight.Ticket(wanted.command), options)
        assert reader.read_chunk().data.num_rows
        for _ in range(50):
            stack.enter_context(connect(flights.url))
        assert reader.read_all().num_rows < TABLE.num_rows


def test_the_flight_server_closes_connections_of_other_protocols(flights: FlightSqlServer) -> None:
    with connect(flights.url) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert is_closed(peer)


def test_the_flight_server_leaves_no_socket_file(flights: FlightSqlServer) -> None:
    with open("/proc/net/unix") as sockets:
        names = [line.split()[-1] for line in sockets if "mesh-flight-" in line]
    assert names == []


def test_a_wrong_token_does_not_authenticate_a_flight_connection(
    flights: FlightSqlServer,
) -> None:
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer x")], timeout=LIMIT_S)
    with flight.connect(flights.url) as client:
        for _ in range(3):
            with pytest.raises(flight.FlightUnauthenticatedError):
                list(client.list_flights(options=options))
        assert flights._limiter.authenticated_count == 0


@pytest.mark.parametrize("step", [1, 3, 9, 1000])
def test_data_frames_are_found_wherever_the_stream_is_cut(step: int) -> None:
    headers = bytes.fromhex("000005 01 04 00000001") + b"12345"
    no_data = bytes.fromhex("000000 00 01 00000001")
    stream = SETTINGS + headers + no_data + SETTINGS
    scan = DataFrameScan()
    pieces = [stream[at : at + step] for at in range(0, len(stream), step)]
    assert not any(scan.feed(piece) for piece in pieces)
    assert scan.feed(bytes.fromhex("000001 00 00 00000001"))
