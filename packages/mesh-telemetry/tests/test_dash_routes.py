"""The dashboard without a browser: files, topics, streams, and the command."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from shown_program import wait_for_quiet

from mesh_core.testing import wait_until
from mesh_telemetry import Telemetry, TelemetryConfig
from mesh_telemetry._dash.dashboard import Dashboard
from mesh_telemetry._dash.files import file_routes
from mesh_telemetry._dash.mesh_graph import group_names
from mesh_telemetry._dash.page_queries import pattern
from mesh_telemetry._dash.queries import TOPICS
from mesh_telemetry._dash.topic_streams import TopicStreams
from mesh_telemetry._dash.waits import find_cycles
from mesh_telemetry._errors import CoverageError
from mesh_telemetry._query.coverage import Coverage, HostFailure, QueryResult
from mesh_telemetry._rows.schemas import TABLE_DOCS
from mesh_telemetry._serve.dashboard_url import dashboard_url
from mesh_telemetry._serve.http import HttpServer
from mesh_telemetry._serve.scopes import Tokens

TOKEN = "a token of the test"
LIMIT_S = 30.0
DASH = Path(__file__).resolve().parents[1] / "src" / "mesh_telemetry" / "_dash" / "pages"


class FakeProgram:
    """Replies like a program with one unresponsive host, and counts requests."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None

    def __call__(self, sql: str, values: object) -> QueryResult:
        self.count += 1
        if self.error is not None:
            raise self.error
        table = pa.table({"host": ["here"], "number": ["0"], "procs": [self.count], "dead": [0]})
        return QueryResult(table, Coverage(("a", "b"), ("a",), (HostFailure("b", "it died"),), ()))


@pytest.fixture
def program() -> FakeProgram:
    return FakeProgram()


@pytest.fixture
def streams() -> TopicStreams:
    return TopicStreams(period_s=0.02, heartbeat_s=0.05, stream_count_max=2)


@pytest.fixture
def server(program: FakeProgram, streams: TopicStreams) -> Iterator[HttpServer]:
    dashboard = Dashboard(program, TABLE_DOCS, streams)
    with HttpServer(dashboard.routes(), Tokens(TOKEN, "an act token")) as opened:
        yield opened
        dashboard.close()
        wait_for_quiet()


def get(
    server: HttpServer, path: str, token: str | None = TOKEN, **headers: str
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=LIMIT_S)
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection.request("GET", path, headers=headers)
    return connection, connection.getresponse()


def read(server: HttpServer, path: str, token: str | None = TOKEN) -> tuple[int, Any]:
    connection, reply = get(server, path, token)
    try:
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def event(reply: http.client.HTTPResponse) -> dict[str, Any]:
    """Return the next event of a stream."""
    while True:
        line = reply.readline()
        assert line, "the stream has ended"
        if line.startswith(b"data: "):
            value: dict[str, Any] = json.loads(line[6:])
            return value


def test_files_need_no_token_and_topics_do(server: HttpServer) -> None:
    for path, kind in [("/", "text/html"), ("/dash/main.js", "text/javascript")]:
        connection, reply = get(server, path, token=None)
        body = reply.read()
        assert (reply.status, reply.headers.get_content_type()) == (200, kind)
        assert "default-src 'self'" in reply.headers["Content-Security-Policy"]
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        connection.close()
        connection, again = get(server, path, None, **{"If-None-Match": reply.headers["ETag"]})
        assert (again.status, again.read()) == (304, b"")
        connection.close()
        assert body
    for path in ("/dash/../files.py", "/dash/%2e%2e/files.py", "/dash/", "/topics/overview"):
        assert read(server, path, token=None)[0] == 401


def test_every_file_is_served_and_none_inserts_html() -> None:
    served = {route.path for route in file_routes()}
    assert served == {"/"} | {f"/dash/{path.name}" for path in DASH.iterdir()}
    for path in DASH.glob("*.js"):
        text = path.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write"):
            assert word not in text, path.name


def test_a_topic_lists_hosts_that_did_not_reply(server: HttpServer) -> None:
    status, body = read(server, "/topics/hosts")
    assert status == 200
    assert body["value"]["rows"][0]["host"] == "here"
    assert body["coverage"] == {
        "queried": ["a", "b"],
        "failed": [{"host": "b", "cause": "it died"}],
    }


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("nothing", 404),
        ("actor", 400),
        ("actor?id=x", 400),
        ("actor?id=18446744073709551616", 400),
        ("meshes?limit=100000", 400),
        ("meshes?offset=-1", 400),
        ("timeline?actors=1,2;drop", 400),
        ("logs?severity=bad", 400),
        ("logs?text=" + "x" * 300, 400),
    ],
)
def test_wrong_arguments_are_refused(server: HttpServer, path: str, status: int) -> None:
    found, body = read(server, f"/topics/{path}")
    assert found == status
    assert body["error"]["message"]


def test_a_stream_pushes_changes_to_all_subscribers(
    server: HttpServer, program: FakeProgram, streams: TopicStreams
) -> None:
    one, first = get(server, "/live/hosts")
    other, second = get(server, "/live/hosts")
    seen = event(first)["value"]["rows"][0]["procs"]
    event(second)
    assert streams.topics == {"hosts?": 2}
    assert event(first)["value"]["rows"][0]["procs"] > seen
    # A third stream exceeds the limit.
    assert read(server, "/live/hosts")[0] == 503
    for connection, reply in ((one, first), (other, second)):
        reply.close()
        connection.close()
    wait_until(lambda: streams.topics == {}, LIMIT_S)
    wait_for_quiet()
    asked = program.count
    assert read(server, "/topics/tables")[0] == 200
    assert program.count == asked


def test_a_stream_reports_an_error_and_continues(server: HttpServer, program: FakeProgram) -> None:
    program.error = CoverageError("no host replied: wait")
    connection, reply = get(server, "/live/hosts")
    assert "no host replied" in event(reply)["error"]
    program.error = None
    assert event(reply)["value"]["rows"]
    reply.close()
    connection.close()


def test_streams_close_with_the_dashboard(server: HttpServer, streams: TopicStreams) -> None:
    connection, reply = get(server, "/live/hosts")
    event(reply)
    streams.close()
    assert b"data" not in reply.read()[-4:]
    connection.close()


def test_an_unchanged_value_is_sent_once() -> None:
    streams = TopicStreams(period_s=0.01, heartbeat_s=0.05)
    asked = Event()

    def query() -> bytes:
        asked.set()
        return b"same"

    stream = streams.stream("topic", query)
    assert next(stream) == b"data: same\n\n"
    assert asked.is_set()
    assert next(stream) == b":\n\n"
    streams.close()
    assert list(stream) == []


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ([], []),
        ([("a", "b"), ("b", "c")], []),
        ([("a", "a")], [["a"]]),
        ([("b", "a"), ("a", "b"), ("c", "a")], [["a", "b"]]),
        ([("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")], [["a", "b"], ["c", "d"]]),
    ],
)
def test_cycles_are_found(edges: list[tuple[str, str]], expected: list[list[str]]) -> None:
    assert find_cycles(edges) == expected


def test_a_group_of_meshes_is_named_after_their_common_prefix() -> None:
    assert group_names(["shard-10", "shard-2", "shard-3"]) == "shard-…"
    assert group_names(["a", "b"]) == "…"
    assert group_names(["same", "same"]) == "same"


def test_wildcards_in_a_search_text_are_escaped() -> None:
    assert pattern(r"a_b%\c") == r"%a\_b\%\\c%"


def test_every_topic_can_be_queried(place: Path) -> None:
    wanted = {
        "actor": "?id=1",
        "case": "?file=missing.case",
        "mesh": "?id=1",
        "procs": "?host=x&number=0",
        "stacks": "?host=x&proc=0.0",
        "logs": "?text=a%25b&mesh=m&proc=0.1&stream=stdout&severity=warning&before=5",
        "timeline": "?actors=1,2&since=1&until=2",
    }
    with (
        Telemetry(TelemetryConfig(directory=str(place))) as telemetry,
        telemetry.serve() as serving,
    ):
        for name in TOPICS:
            path = f"/topics/{name}{wanted.get(name, '')}"
            status, body = read(serving._http, path, serving.token)
            assert (name, status) == (name, 200), body
        assert serving.dashboard_url == dashboard_url(serving.url, serving.token)
        printed = dash("--no-open")
        assert printed.stdout.strip() == serving.dashboard_url, printed.stderr
    assert dash("--no-open").returncode == 1


def dash(*words: str) -> subprocess.CompletedProcess[str]:
    # `mesh` runs the command in this way if the package is installed.
    script = (
        "import sys, typer\n"
        "from mesh_telemetry import TelemetryError\n"
        "from mesh_telemetry._dash.command import dash\n"
        "app = typer.Typer()\n"
        "app.command()(dash)\n"
        "try:\n"
        "    app(sys.argv[1:], standalone_mode=False)\n"
        "except TelemetryError as error:\n"
        "    sys.exit(str(error))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
