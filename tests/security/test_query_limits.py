"""A user with read access to a program's telemetry cannot take the program down by an SQL query."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mesh_core.testing import wait_until
from tests.security.users import User

_GROWN_MAX = 64 << 20
_LIMIT_S = 60.0
_ENDLESS = "select sum(value % 7) as s from generate_series(1, 1000000000000000)"
#: Each with a part of the error that names the limit or the cause.
_GREEDY = {
    "select range(1, 1000000000)": "1536 MiB of memory",
    "select range(1, 1000000000) from procs": "1536 MiB of memory",
    "select length(repeat('x', 2000000000))": "1536 MiB of memory",
    "select repeat('x', 50000000)": "33554432 bytes",
    "select * from generate_series(1, 300000000)": "33554432 bytes",
    "select " + "+".join(["1"] * 20_000): "SIGSEGV",
    _ENDLESS: "10 s",
}

_OWNER = """
import json, os
from mesh_telemetry import Telemetry

with Telemetry() as telemetry, telemetry.serve() as serving:
    telemetry.query("select 1")
    print(json.dumps([os.getpid(), serving.url, serving.token]), flush=True)
    input()
    print(json.dumps(telemetry.query("select 1 as one").table.to_pylist()), flush=True)
"""

# Sends the queries of its input, one per line, and prints each status with the text of the reply.
_CLIENT = """
import http.client, json, sys, urllib.error, urllib.request

url, token = sys.argv[1:]
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for line in sys.stdin:
    body = json.dumps({"sql": json.loads(line)}).encode()
    request = urllib.request.Request(url + "/query", body, {"Authorization": "Bearer " + token})
    try:
        with opener.open(request, timeout=60) as reply:
            print(json.dumps([reply.status, reply.read().decode()]), flush=True)
    except urllib.error.HTTPError as error:
        print(json.dumps([error.code, error.read().decode()]), flush=True)
"""

# Sends a query, and closes the connection when its input has a line.
_HANGING_UP = """
import http.client, json, sys

url, token, sql = sys.argv[1:]
connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
body = json.dumps({"sql": sql}).encode()
connection.request("POST", "/query", body, {"Authorization": "Bearer " + token})
print("sent", flush=True)
input()
connection.close()
"""


class Program:
    """A program with telemetry that another user may read."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.pid, self.url, self.token = json.loads(process.stdout.readline())

    @property
    def rss_bytes(self) -> int:
        """Resident memory of the program in bytes."""
        with open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * 4096


@pytest.fixture
def program(owner: User) -> Iterator[Program]:
    with owner.start_python(_OWNER) as process:
        yield Program(process)
        # The program is alive and executes its own queries.
        answer, _ = process.communicate("\n", timeout=_LIMIT_S)
        assert json.loads(answer) == [{"one": 1}]
        assert process.returncode == 0


def answers(other_user: User, program: Program, queries: list[str]) -> list[Any]:
    with other_user.start_python(_CLIENT, program.url, program.token) as asking:
        lines = "".join(f"{json.dumps(sql)}\n" for sql in queries)
        said, _ = asking.communicate(lines, timeout=_LIMIT_S)
    return [json.loads(line) for line in said.splitlines()]


def query_ticks(uid: int) -> dict[int, int]:
    """Return the CPU ticks that each query process of a user has used."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        # The process may have exited.
        with suppress(OSError):
            name, _, said = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            if name == "mesh-query" and folder.stat().st_uid == uid:
                words = said.split()
                found[int(folder.name)] = int(words[11]) + int(words[12])
    return found


def test_no_query_takes_the_program_down(other_user: User, program: Program) -> None:
    before = program.rss_bytes
    found = answers(other_user, program, [*_GREEDY, "select count(*) as n from procs"])
    for (status, text), wanted in zip(found, _GREEDY.values(), strict=False):
        assert status in (400, 500, 502)
        assert wanted in text
    assert found[-1][0] == 200
    assert program.rss_bytes - before < _GROWN_MAX


def test_a_query_ends_when_its_caller_disconnects(
    owner: User, other_user: User, program: Program
) -> None:
    before = query_ticks(owner.uid)

    def busy() -> list[int]:
        now = query_ticks(owner.uid)
        return [pid for pid, ticks in now.items() if ticks > before.get(pid, 0) + 10]

    with other_user.start_python(_HANGING_UP, program.url, program.token, _ENDLESS) as asking:
        assert asking.stdout is not None
        assert asking.stdout.readline() == "sent\n"
        (computing,) = wait_until(busy, _LIMIT_S)
        # Other queries are executed concurrently.
        ((status, _),) = answers(other_user, program, ["select count(*) as n from procs"])
        assert status == 200
        asking.communicate("\n", timeout=_LIMIT_S)
        wait_until(lambda: computing not in query_ticks(owner.uid), 2.0)
