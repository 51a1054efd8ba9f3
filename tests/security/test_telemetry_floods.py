"""An unauthorized user floods the telemetry ports; the program and its readers continue."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.security.users import User

#: Few enough descriptors that a flood without limits would exhaust them.
DESCRIPTORS_MAX = 512
CONNECTIONS = 2_000
#: Maximum memory growth of the program during the flood.
GROWTH_BYTES_MAX = 64 << 20

PROGRAM = """
import json, os, resource, sys, threading
from mesh_telemetry import Telemetry

descriptors_max = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, descriptors_max))

def status(_):
    # What the program needs for its own work is there.
    held = [open(os.devnull) for _ in range(100)]
    count = len(os.listdir("/proc/self/fd")) - len(held) - 1
    for one in held:
        one.close()
    with open("/proc/self/statm") as file:
        rss = int(file.read().split()[1]) * resource.getpagesize()
    return {"descriptors": count, "rss": rss, "threads": threading.active_count()}

with Telemetry() as telemetry, telemetry.serve() as serving:
    telemetry.query("select count(*) from procs")
    print(json.dumps([serving.url, serving.flight_url, serving.token]), flush=True)
    for line in sys.stdin:
        print(json.dumps(status(line)), flush=True)
"""

READER = """
import json, sys, time
from pyarrow import flight
from mesh_telemetry._serve.program_client import ProgramClient
from mesh_telemetry._serve.flight_messages import packed
from mesh_telemetry._serve.program_files import served_program

SQL = "select count(*) as procs from procs"
served = served_program()
header = (b"authorization", f"Bearer {served.token}".encode())
options = flight.FlightCallOptions(headers=[header], timeout=10.0)
command = packed("CommandStatementQuery", [(1, SQL.encode())])
took_s = []
for _ in range(int(sys.argv[2])):
    began = time.monotonic()
    if sys.argv[1] == "http":
        with ProgramClient(served) as asking:
            rows = asking.query(SQL)["rows"]
    else:
        with flight.connect(served.flight_url) as client:
            rows = client.do_get(flight.Ticket(command), options).read_all().to_pylist()
    assert rows[0]["procs"] >= 1, rows
    took_s.append(time.monotonic() - began)
print(json.dumps(took_s))
"""

# Keeps as many connections open as possible, and replaces each that is closed.
FLOOD = """
import resource, selectors, socket, sys

port, kind, wanted = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
held_max = min(hard, 8_000) - 64
resource.setrlimit(resource.RLIMIT_NOFILE, (held_max + 64, hard))
first = {
    "silent": b"",
    "half": b"POST /query HTTP/1.1\\r\\nHost: localhost\\r\\n",
    "endless": b"GET /query HTTP/1.1\\r\\n",
    "guess": b"GET /query HTTP/1.1\\r\\nHost: localhost\\r\\nAuthorization: Bearer x\\r\\n\\r\\n",
    "http2": b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes.fromhex("000000040000000000"),
}[kind]
more = b"X: " + b"x" * 1_000 + b"\\r\\n" if kind == "endless" else b""
selector = selectors.DefaultSelector()
held_count = opened_count = cut_count = 0
is_told = False
while True:
    for _ in range(100):
        if held_count >= held_max:
            break
        one = socket.socket()
        one.setblocking(False)
        try:
            one.connect(("127.0.0.1", port))
        except BlockingIOError:
            pass
        except OSError:
            one.close()
            break
        selector.register(one, selectors.EVENT_READ | selectors.EVENT_WRITE, first)
        held_count += 1
    for key, events in selector.select(0.1):
        one, left = key.fileobj, key.data
        try:
            if events & selectors.EVENT_WRITE:
                if left is first:
                    opened_count += 1
                if left:
                    one.send(left)
                wanted_events = selectors.EVENT_READ | selectors.EVENT_WRITE * bool(more)
                selector.modify(one, wanted_events, more)
            if events & selectors.EVENT_READ and not one.recv(65536):
                raise ConnectionResetError
        except BlockingIOError:
            pass
        except OSError:
            selector.unregister(one)
            one.close()
            held_count -= 1
            cut_count += 1
    if not is_told and opened_count >= wanted:
        is_told = True
        print("flooding", opened_count, cut_count, flush=True)
"""


class OwnersProgram:
    """A program of the owner that serves telemetry."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url, self.flight_url, self.token = self._read()

    def port(self, kind: str) -> str:
        """Return the port of HTTP or of Flight."""
        return str((self.url if kind == "http" else self.flight_url).rpartition(":")[2])

    def status(self) -> dict[str, int]:
        """Return the resources that it holds, measured while it has a hundred more files open."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, int] = self._read()
        return found

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@contextmanager
def serving(owner: User) -> Iterator[OwnersProgram]:
    with owner.start_python(PROGRAM, str(DESCRIPTORS_MAX)) as process:
        try:
            yield OwnersProgram(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60) == 0
        finally:
            process.kill()


@contextmanager
def flooding(other_user: User, port: str, kind: str) -> Iterator[None]:
    """Flood a port; the block begins when the connections have been opened."""
    with other_user.start_python(FLOOD, port, kind, str(CONNECTIONS)) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("flooding")
            yield
            assert process.poll() is None, "the flood has ended by itself"
        finally:
            process.kill()


def answered_s(owner: User, server: str, count: int) -> list[float]:
    """Return how long each of several readers of the owner waited for rows, in seconds."""
    said = owner.run_python(READER, server, str(count), timeout_s=90)
    assert said.startswith("["), said
    found: list[float] = json.loads(said)
    return found


@pytest.mark.parametrize(
    ("server", "kind"),
    [
        ("http", "silent"),
        ("http", "half"),
        pytest.param("http", "endless", marks=pytest.mark.slow),
        ("http", "guess"),
        pytest.param("flight", "silent", marks=pytest.mark.slow),
        ("flight", "http2"),
        ("flight", "endless"),
    ],
)
def test_a_flood_by_another_user_does_not_block_readers(
    owner: User, other_user: User, server: str, kind: str
) -> None:
    with serving(owner) as program:
        before = program.status()
        with flooding(other_user, program.port(server), kind):
            took_s = answered_s(owner, server, 5)
            during = program.status()
        print(f"{server} {kind}: answered in {took_s} s; {before} became {during}")
    assert max(took_s) < 10.0
    assert during["descriptors"] < before["descriptors"] + DESCRIPTORS_MAX // 4
    assert during["threads"] < before["threads"] + 16
    assert during["rss"] < before["rss"] + GROWTH_BYTES_MAX
