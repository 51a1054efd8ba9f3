"""The permissions of the two tokens, on every route of a program that serves telemetry."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyarrow import flight
from recorded_program import config

from mesh_telemetry import Telemetry
from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._serve.flight_messages import packed
from mesh_telemetry._serve.program_files import served_program
from mesh_telemetry._serve.routes import known_route
from mesh_telemetry._serve.scopes import ROUTE_SCOPES, Scope, Tokens
from mesh_telemetry._serve.serving import Serving

LIMIT_S = 30.0
ROUTES = sorted(ROUTE_SCOPES)
ACT_ROUTES = [route for route in ROUTES if ROUTE_SCOPES[route] is Scope.ACT]
LOCALS = "select repr from {}"


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    place = Path(tempfile.mkdtemp(prefix="tel-", dir="/dev/shm"))
    try:
        with Telemetry(config(place)) as telemetry, telemetry.serve() as made:
            yield made
    finally:
        shutil.rmtree(place, ignore_errors=True)


def send(
    serving: Serving, route: tuple[str, str], token: str | None, body: str = "{", **headers: str
) -> tuple[int, dict[str, str]]:
    """Send a request; return the status and the error, if any."""
    method, path = route
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection(urlsplit(serving.url).netloc, timeout=LIMIT_S)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path.replace("*", "none"), body if method == "POST" else None, sent)
    with connection.getresponse() as reply:
        is_json = reply.headers.get("Content-Type") == "application/json"
        said: Any = json.loads(reply.read()) if is_json else {}
        connection.close()
        return reply.status, said.get("error", {})


def test_the_scope_table_contains_every_served_route(serving: Serving) -> None:
    served = {
        (route.method, re.sub(r"^/dash/[^/]+$", "/dash/*", route.path)): route.scope
        for route in serving._http.routes
    }
    assert served == ROUTE_SCOPES


def test_a_route_without_a_scope_cannot_be_created() -> None:
    with pytest.raises(KeyError):
        known_route("POST", "/forgotten", lambda _: None)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("token", [None, "", "guessed"])
def test_only_open_routes_can_be_used_without_a_token(
    serving: Serving, route: tuple[str, str], token: str | None
) -> None:
    status, error = send(serving, route, token)
    if ROUTE_SCOPES[route] is Scope.OPEN:
        assert status in (200, 401), "a file, or the name of none"
    else:
        assert (status, error["code"]) == (401, "unauthorized")


@pytest.mark.parametrize("route", ACT_ROUTES)
def test_the_read_token_is_refused_by_act_routes(serving: Serving, route: tuple[str, str]) -> None:
    status, error = send(serving, route, serving.token)
    assert (status, error["code"]) == (403, "scope")
    assert f"{route[0]} {route[1]} needs the act token" in error["message"]
    assert "Serving.act_token" in error["message"]


@pytest.mark.parametrize("route", [route for route in ROUTES if route not in ACT_ROUTES])
def test_the_read_token_is_accepted_by_read_routes(
    serving: Serving, route: tuple[str, str]
) -> None:
    assert send(serving, route, serving.token)[0] not in (401, 403)


@pytest.mark.parametrize("route", ROUTES)
def test_the_act_token_is_accepted_by_all_routes(serving: Serving, route: tuple[str, str]) -> None:
    assert send(serving, route, serving.act_token)[0] not in (401, 403)


def test_the_api_description_says_which_token_each_route_accepts(serving: Serving) -> None:
    connection = http.client.HTTPConnection(urlsplit(serving.url).netloc, timeout=LIMIT_S)
    headers = {"Authorization": f"Bearer {serving.token}"}
    connection.request("GET", "/openapi.json", headers=headers)
    with connection.getresponse() as reply:
        paths = json.load(reply)["paths"]
    connection.close()
    tokens = {
        (method.upper(), re.sub(r"{\w+}", "*", path)): {
            name for accepted in operation["security"] for name in accepted
        }
        for path, operations in paths.items()
        for method, operation in operations.items()
        if method != "parameters"
    }
    accepted = {Scope.OPEN: set(), Scope.READ: {"read", "act"}, Scope.ACT: {"act"}}
    assert tokens == {route: accepted[scope] for route, scope in ROUTE_SCOPES.items()}


@pytest.mark.parametrize(
    "sql",
    [
        LOCALS.format("pyspy_local_variables"),
        LOCALS.format('"pyspy_local_variables"'),
        LOCALS.format("Pyspy_LOCAL_Variables"),
        LOCALS.format("datafusion.public.pyspy_local_variables"),
        "with x as (select * from pyspy_local_variables) select repr from x",
        "select 1 from procs where exists (select 1 from pyspy_local_variables)",
        "select * from information_schema.tables, pyspy_local_variables",
    ],
)
def test_sql_reads_local_variables_only_with_the_act_token(serving: Serving, sql: str) -> None:
    body = json.dumps({"sql": sql})
    status, error = send(serving, ("POST", "/query"), serving.token, body)
    assert (status, error["code"]) == (403, "scope")
    assert "mesh query --act" in error["message"]
    assert send(serving, ("POST", "/query"), serving.act_token, body)[0] in (200, 400)


@pytest.mark.parametrize("sql", [LOCALS.format("pyspy_\\u006cocal_variables"), "show tables"])
def test_an_escaped_table_name_does_not_bypass_the_act_token(serving: Serving, sql: str) -> None:
    status, error = send(serving, ("POST", "/query"), serving.token, json.dumps({"sql": sql}))
    assert status in (200, 400)
    assert "repr" not in error.get("message", "")


def test_flight_sql_accepts_either_token_but_only_with_read_scope(serving: Serving) -> None:
    sql = LOCALS.format("pyspy_local_variables").encode()
    wanted = flight.FlightDescriptor.for_command(packed("CommandStatementQuery", [(1, sql)]))
    reading = flight.FlightDescriptor.for_command(
        packed("CommandStatementQuery", [(1, b"select 1 as one")])
    )
    with flight.connect(serving.flight_url) as client:
        for token in (serving.token, serving.act_token):
            header = (b"authorization", f"Bearer {token}".encode())
            options = flight.FlightCallOptions(headers=[header], timeout=LIMIT_S)
            assert client.get_flight_info(reading, options).schema.names == ["one"]
            with pytest.raises(flight.FlightUnauthorizedError, match="needs the act token"):
                client.get_flight_info(wanted, options)
            with pytest.raises(flight.FlightUnauthorizedError, match="needs the act token"):
                client.do_get(flight.Ticket(wanted.command), options)


def test_dashboard_urls_and_program_files_contain_only_the_read_token(
    serving: Serving,
) -> None:
    assert serving.token in serving.dashboard_url
    assert serving.act_token not in serving.dashboard_url
    served = served_program()
    assert serving.act_token not in repr(served)
    path = Path(served.act_token_file)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert served.act_token() == serving.act_token
    notes = [note.read_text() for note in path.parent.glob("*.json")]
    assert len(notes) == 1
    assert serving.act_token not in notes[0]


@pytest.mark.parametrize(
    "headers", [{"Origin": "same"}, {"Sec_Fetch_Site": "same-origin"}, {"Sec_Fetch_Site": "none"}]
)
def test_a_browser_cannot_use_the_act_token(serving: Serving, headers: dict[str, str]) -> None:
    headers = {name: serving.url if value == "same" else value for name, value in headers.items()}
    for route in (("POST", "/debug/run"), ("POST", "/query")):
        status, error = send(serving, route, serving.act_token, **headers)
        assert (status, error["code"]) == (403, "browser")
    # With the read token the dashboard is treated like any browser.
    body = json.dumps({"sql": "select 1 as one"})
    assert send(serving, ("POST", "/query"), serving.token, body, **headers)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example"])
@pytest.mark.parametrize("route", [("GET", "/"), ("POST", "/query"), ("POST", "/stop")])
def test_a_rebound_dns_name_is_refused(serving: Serving, host: str, route: tuple[str, str]) -> None:
    status, error = send(serving, route, serving.token, Host=host)
    assert (status, error["code"]) == (421, "wrong_host")


@pytest.mark.parametrize("host", ["localhost:4000", "127.0.0.1:5000", "[::1]:80"])
def test_the_port_of_an_ssh_tunnel_may_differ(serving: Serving, host: str) -> None:
    body = json.dumps({"sql": "select 1 as one"})
    assert send(serving, ("POST", "/query"), serving.token, body, Host=host)[0] == 200


def test_requests_from_other_origins_are_refused(serving: Serving) -> None:
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        status, error = send(serving, ("POST", "/query"), serving.token, Origin=origin)
        assert (status, error["code"]) == (403, "wrong_origin")


@pytest.mark.parametrize(("read", "act"), [("", "a"), ("a", ""), ("a", "a")])
def test_tokens_must_be_different_and_not_empty(read: str, act: str) -> None:
    with pytest.raises(TelemetryError, match="pass "):
        Tokens(read, act)


def test_a_program_may_choose_its_tokens(place: Path) -> None:
    with Telemetry(config(place)) as telemetry:
        with telemetry.serve(token="to read", act_token="to act") as made:
            assert (made.token, made.act_token) == ("to read", "to act")
        with pytest.raises(TelemetryError, match="pass different ones"):
            telemetry.serve(token="same", act_token="same")
