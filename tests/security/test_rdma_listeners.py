"""Another user of the machine floods the listeners of mesh-rdma, or imitates one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.security.users import User

#: Limit of concurrent unauthenticated connections of a process; each has a descriptor and a thread.
UNAUTHENTICATED_MAX = 256
#: Other descriptors that the process opens during the attack, including connections of readers.
OTHERS_MAX = 64
MEMORY_MAX_KIB = 64 << 10
#: A refusal has a head of 16 bytes and a reason; on loopback a challenge precedes it.
ANSWER_LEN_MAX = 16 + 16 + 64
REASON = b"it is another process than the handle says"
#: Time limit for the removal of connections that were left open.
END_LIMIT_S = 30.0

OFFER = """
import pickle, sys
from mesh_rdma import RDMABuffer
buffer = RDMABuffer(bytearray(b"memory of the owner!"))
print(bytes(buffer._handle.identity[0]).hex(), pickle.dumps(buffer).hex(), flush=True)
sys.stdin.read()
"""

USE = """
import pickle, sys
try:
    pickle.loads(bytes.fromhex(sys.argv[1])).read_into(bytearray(20), timeout=20.0).get()
except Exception as error:
    print(type(error).__name__, error)
"""

IMITATE = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(chr(0) + "mesh-rdma-" + sys.argv[1])
listener.listen()
print("listening", flush=True)
connection, _ = listener.accept()
print(connection.recv(4096).hex(), flush=True)
"""


class Program:
    """The `rdma_owner` program, run as the owner."""

    def __init__(self, owner: User) -> None:
        self.process = owner.popen(
            [owner.python, "-m", "tests.security.rdma_owner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def do(self, command: str) -> Any:
        """Execute a command in the program and return the reply."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return json.loads(_line(self.process.stdout))

    def end(self) -> None:
        with self.process as process:
            process.communicate(timeout=60)


@pytest.fixture(scope="module")
def program(owner: User) -> Iterator[Program]:
    running = Program(owner)
    yield running
    running.end()


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    line = stream.readline()
    assert line, "the program has ended"
    return line


def test_transfers_continue_while_another_user_floods_every_listener(
    program: Program, owner: User, other_user: User
) -> None:
    assert program.do("read") == ["arena", "unix", "tcp"]
    before = program.do("usage")
    attack = ["-m", "tests.security.rdma_flooder"]
    command = [other_user.python, *attack, str(owner.uid), program.do("token"), str(owner.home)]
    most = dict(before)
    # The flood ends when its input is closed, whatever happens here.
    with other_user.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as flood:
        assert _line(flood.stdout) == "flooding\n"
        for _ in range(4):
            assert program.do("read") == ["arena", "unix", "tcp"]
            usage = program.do("usage")
            for name in ("descriptors", "threads", "rss_kib"):
                most[name] = max(most[name], usage[name])
        said, _ = flood.communicate(timeout=60)
    report = json.loads(said)

    limit = UNAUTHENTICATED_MAX + OTHERS_MAX
    assert most["descriptors"] <= before["descriptors"] + limit, most
    assert most["threads"] <= before["threads"] + limit, most
    assert most["rss_kib"] <= before["rss_kib"] + MEMORY_MAX_KIB, most
    assert usage["refusals"]["other_user"] > 0
    _expect_no_data(report)
    _expect_all_gone(program, before)


def _expect_no_data(report: list[dict[str, Any]]) -> None:
    """Check that the flood reached listeners of both kinds, and received nothing but refusals."""
    local = [one for one in report if isinstance(one["address"], str)]
    ports = [one for one in report if not isinstance(one["address"], str)]
    assert sum(one["connected"] for one in ports) > 0, report
    assert any(one["address"].startswith("\0mesh-rdma-") and one["connected"] for one in local)
    # The sockets of mesh-core are in a folder that only the owner can enter.
    assert not any(one["address"].startswith("/") and one["connected"] for one in local), local
    for one in local:
        assert one["longest"] == 0, one
    for one in ports:
        assert one["longest"] <= ANSWER_LEN_MAX, one
        for received in map(bytes.fromhex, one["received"]):
            assert received == b"" or received.endswith(REASON), received


def _expect_all_gone(program: Program, before: dict[str, Any]) -> None:
    until = time.monotonic() + END_LIMIT_S
    most = {name: before[name] + 4 for name in ("descriptors", "threads")}
    usage = program.do("usage")
    # A thread ends after it has closed its connection.
    while any(usage[name] > most[name] for name in most) and time.monotonic() < until:
        usage = program.do("usage")
    assert usage["descriptors"] <= most["descriptors"]
    assert usage["threads"] <= most["threads"]


def test_root_is_refused_by_the_local_socket_like_any_other_user(program: Program) -> None:
    assert os.geteuid() == 0
    refused_before = program.do("usage")["refusals"]["other_user"]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20.0)
        connection.connect(f"\0mesh-rdma-{program.do('token')}")
        assert connection.recv(1) == b""
    assert program.do("usage")["refusals"]["other_user"] == refused_before + 1


def test_the_tcp_ports_of_a_program_without_credentials_are_on_loopback(
    program: Program, owner: User
) -> None:
    program.do("read")
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text(encoding="utf-8").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and int(words[7]) == owner.uid:
                found.append(words[1].rsplit(":", 1)[0])
    assert set(found) == {"0100007F"}


def test_the_secret_is_not_sent_to_a_socket_that_impersonates_a_dead_process(
    owner: User, other_user: User
) -> None:
    with owner.start_python(OFFER) as offering:
        token, handle = _line(offering.stdout).split()
        offering.communicate(timeout=60)
    with other_user.start_python(IMITATE, token) as imitating:
        assert _line(imitating.stdout) == "listening\n"
        said = owner.run_python(USE, handle)
        assert "another user" in said, said
        assert imitating.communicate(timeout=60)[0] == "\n"
