"""Client requests to a program that serves telemetry: results and error messages."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mesh_telemetry._errors import DebugError, QueryError, TelemetryError
from mesh_telemetry._serve.http import HttpServer
from mesh_telemetry._serve.program_client import ProgramClient, ProgramUnavailable, has_ended
from mesh_telemetry._serve.program_files import ServedProgram
from mesh_telemetry._serve.routes import Reply, Request, RequestError, Route, json_reply
from mesh_telemetry._serve.scopes import Scope, Tokens

LIMIT_S = 30.0
TOKENS = Tokens("a read token", "an act token")


def refuse(request: Request) -> Reply:
    raise RequestError(int(request.tail), "refused", f"no {request.tail}: do otherwise")


def broken() -> Iterator[bytes]:
    yield b"the beginning"
    raise ConnectionAbortedError


def long(request: Request) -> Reply:
    return Reply("text/plain", iter([b"x" * 70_000] * 3))


def greet(client: socket.socket) -> None:
    client.sendall(b"hello ")
    client.sendall(client.recv(100).upper())


class Program:
    """Serves requests, and delays one response."""

    def __init__(self, folder: Path) -> None:
        self.release = threading.Event()
        self.is_asked = threading.Event()
        routes = [
            Route("POST", "/echo", lambda request: json_reply(request.json_object()), Scope.READ),
            Route("POST", "/late", self._late, Scope.READ),
            Route("POST", "/refuse/*", refuse, Scope.READ),
            Route("GET", "/refuse/*", refuse, Scope.READ),
            Route("POST", "/nothing", lambda _: Reply("text/plain", b"no JSON"), Scope.READ),
            Route("GET", "/long", long, Scope.READ),
            Route("POST", "/act", lambda _: json_reply({}), Scope.ACT),
            Route("GET", "/short", lambda _: Reply("text/plain", b"all of it"), Scope.READ),
            Route("GET", "/broken", lambda _: Reply("text/plain", broken()), Scope.READ),
            Route("POST", "/greet", lambda _: Reply("greeting", b"", take_over=greet), Scope.ACT),
        ]
        self.server = HttpServer(routes, TOKENS)
        act_file = folder / "act-token"
        act_file.touch(0o600)
        act_file.write_text(TOKENS.act)
        self.served = ServedProgram(
            os.getpid(), "program", self.server.url, "", TOKENS.read, str(act_file)
        )

    def _late(self, request: Request) -> Reply:
        self.is_asked.set()
        self.release.wait(LIMIT_S)
        return json_reply({})


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    made.release.set()
    made.server.close()


@pytest.fixture
def asking(program: Program) -> Iterator[ProgramClient]:
    with ProgramClient(program.served) as made:
        yield made


def test_json_is_sent_and_received(asking: ProgramClient) -> None:
    assert asking.post("/echo", {"a": [1, None]}) == {"a": [1, None]}


@pytest.mark.parametrize(
    ("status", "kind"), [(400, QueryError), (409, DebugError), (503, TelemetryError)]
)
def test_a_refusal_says_why(asking: ProgramClient, status: int, kind: type[Exception]) -> None:
    for ask in (
        lambda: asking.post(f"/refuse/{status}", {}),
        lambda: list(asking.pieces(f"/refuse/{status}")),
        lambda: asking.upgraded(f"/refuse/{status}", {}, "greeting"),
    ):
        with pytest.raises(TelemetryError, match=f"^no {status}: do otherwise$") as told:
            ask()
        assert type(told.value) is kind


def test_a_request_sends_the_token_of_its_scope(asking: ProgramClient) -> None:
    assert asking.post("/act", {}, scope=Scope.ACT) == {}
    with pytest.raises(TelemetryError, match="POST /act needs the act token"):
        asking.post("/act", {})


def test_an_act_token_that_others_can_read_is_refused(
    program: Program, asking: ProgramClient
) -> None:
    Path(program.served.act_token_file).chmod(0o644)
    with pytest.raises(TelemetryError, match="not a private file of this user"):
        asking.post("/act", {}, scope=Scope.ACT)


def test_read_requests_work_without_the_act_token(program: Program, asking: ProgramClient) -> None:
    Path(program.served.act_token_file).unlink()
    with pytest.raises(TelemetryError, match="no longer serves telemetry"):
        asking.post("/act", {}, scope=Scope.ACT)
    assert asking.post("/echo", {"a": 1}) == {"a": 1}


def test_a_reply_that_is_not_json_raises_an_error(asking: ProgramClient) -> None:
    with pytest.raises(TelemetryError, match="did not reply"):
        asking.post("/nothing", {})


def test_pieces_are_received_until_the_end_of_the_reply(asking: ProgramClient) -> None:
    assert b"".join(asking.pieces("/long")) == b"x" * 210_000
    assert b"".join(asking.pieces("/short")) == b"all of it"


def test_a_truncated_reply_raises_an_error(asking: ProgramClient) -> None:
    pieces = asking.pieces("/broken")
    assert next(pieces) == b"the beginning"
    with pytest.raises(TelemetryError, match="did not reply"):
        list(pieces)


def test_an_error_of_the_reader_of_pieces_is_not_wrapped(asking: ProgramClient) -> None:
    def write() -> None:
        for _ in asking.pieces("/long"):
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        write()


def test_an_upgraded_connection_receives_all_following_bytes(asking: ProgramClient) -> None:
    with asking.upgraded("/greet", {}, "greeting") as stream:
        asking.close()
        stream.settimeout(LIMIT_S)
        stream.sendall(b"world")
        with stream.makefile("rb") as said:
            assert said.read() == b"hello WORLD"


def test_a_waiting_request_fails_when_the_client_is_closed(
    program: Program, asking: ProgramClient
) -> None:
    told: list[BaseException] = []

    def wait() -> None:
        try:
            asking.post("/late", {}, timeout_s=600.0)
        except TelemetryError as error:
            told.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert program.is_asked.wait(LIMIT_S)
    asking.close()
    waiting.join(LIMIT_S)
    assert len(told) == 1
    with pytest.raises(ProgramUnavailable, match="is closed"):
        asking.post("/echo", {})


def test_a_request_to_an_unresponsive_program_times_out(asking: ProgramClient) -> None:
    with pytest.raises(TelemetryError, match="did not reply: timed out"):
        asking.post("/late", {}, timeout_s=0.2)


def test_a_program_that_stopped_serving_is_unavailable(
    program: Program, asking: ProgramClient
) -> None:
    program.server.close()
    with pytest.raises(ProgramUnavailable, match="no longer serves telemetry"):
        asking.post("/echo", {})


def test_an_exited_program_is_unavailable(program: Program) -> None:
    program.server.close()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(LIMIT_S)
    served = replace(program.served, pid=ended.pid)
    with ProgramClient(served) as asking, pytest.raises(ProgramUnavailable, match="has exited"):
        asking.post("/echo", {})


def test_an_exiting_process_that_has_closed_its_port_counts_as_exited() -> None:
    # A killed process has closed its port but not yet released its memory, so it is not a zombie
    # yet.
    name, _, rest = Path("/proc/self/stat").read_text().rpartition(")")
    fields = rest.split()
    assert not has_ended(f"{name}) {' '.join(fields)}")
    fields[6] = str(int(fields[6]) | 0x4)
    assert has_ended(f"{name}) {' '.join(fields)}")
    assert has_ended("1 (a) b) Z 1 1 1 0 -1 0")
