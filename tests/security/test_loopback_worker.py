"""A loopback worker without job credentials serves only its own user."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.security.owner_programs import END_LIMIT_S, Worker, running_job, running_worker
from tests.security.users import TREE, User

#: Sends a request to serve a job, a HELLO as its program and a call that unpickles a file, each in
#: plaintext, and closes the socket immediately: the kernel reports uid 0 for a closed socket.
BLIND_BYTES = """
import json, os, socket, sys
from contextlib import suppress
from pathlib import Path
from tests.hosts.cluster.attacker import ATTACH, CALL, Proc, bomb, frame, hello
port, marker = int(sys.argv[1]), Path(sys.argv[2])
me, to, job, token = Proc(0), Proc(7), os.urandom(16), os.urandom(32)
facts = {"version": 1, "job": job.hex(), "token": token.hex(), "host": 7, "epoch": 0}
facts |= {"verb": "serve", "owner": "mallory", "lease_s": 600.0, "path": [], "config": {}}
facts |= {"generation": 0, "orphan_grace_s": 0.0, "worker_id": "", "versions": {}, "preload": []}
call = frame(CALL, bomb(marker), to=to.number, sender=me.number)
greeting = hello(me, to, job, token) + call
for data in 200 * [frame(ATTACH, json.dumps(facts).encode()), greeting]:
    with socket.create_connection(("127.0.0.1", port)) as worker, suppress(OSError):
        worker.sendall(data)
print("sent")
"""

#: Attaches like any program.
ATTACH_TO_WORKER = """
import sys
from mesh_core import HostDied, attach_to_workers, configure
configure(attach_timeout_s=0.1)
try:
    attach_to_workers([sys.argv[1]]).initialized.get()
    print("attached")
except HostDied as error:
    print("refused:", error)
"""

#: Listens on a free port, replies with some bytes, and prints a line with all data that the peer
#: sends in each connection.
LISTENER = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(f"tcp://127.0.0.1:{server.getsockname()[1]}", flush=True)
    while True:
        heard = b""
        with server.accept()[0] as caller:
            try:
                heard += caller.recv(1 << 16)
                caller.sendall(bytes.fromhex(sys.argv[1]))
                caller.shutdown(socket.SHUT_WR)
                while more := caller.recv(1 << 16):
                    heard += more
            except OSError:
                pass
        print(heard.hex(), flush=True)
"""


@pytest.fixture
def marker(owner: User) -> Iterator[Path]:
    """A file that the owner would create by unpickling data of another user."""
    path = owner.home / "tmp" / "unpickled"
    yield path
    assert not path.exists(), "a process of the owner unpickled something of another user"


@contextmanager
def unharmed(owner: User, worker: Worker) -> Iterator[None]:
    """Attack a worker while it is free and while it serves a job; it must work after both."""
    with running_job(owner, worker) as job:
        assert job.outcome == "ready"
        yield
        assert job.echo("still here") == "still here"
    with running_job(owner, worker) as job:
        assert job.outcome == "ready"
        assert job.echo("and again") == "and again"
    said = worker.stop()
    assert "mallory" not in said
    assert f"uid={owner.uid}" not in said


def test_blind_bytes_from_a_closed_socket_do_not_occupy_a_free_worker(
    owner: User, other_user: User, marker: Path
) -> None:
    with running_worker(owner) as worker:
        assert other_user.run_python(BLIND_BYTES, str(worker.port), str(marker)) == "sent\n"
        with unharmed(owner, worker):
            pass


def test_blind_bytes_from_a_closed_socket_do_not_harm_a_job(
    owner: User, other_user: User, marker: Path
) -> None:
    with running_worker(owner) as worker, unharmed(owner, worker):
        assert other_user.run_python(BLIND_BYTES, str(worker.port), str(marker)) == "sent\n"


def test_another_user_cannot_attach(owner: User, other_user: User) -> None:
    with running_worker(owner) as worker:
        said = other_user.run_python(ATTACH_TO_WORKER, worker.address)
        assert said.startswith("refused: "), said
        assert f"it has not proved to be a worker of user {other_user.uid}" in said
        with unharmed(owner, worker):
            said = other_user.run_python(ATTACH_TO_WORKER, worker.address)
            assert said.startswith("refused: "), said


def test_root_without_credentials_cannot_attach(owner: User, tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(TREE)}
    env.pop("MESH_HOME", None)
    with running_worker(owner) as worker:
        command = [sys.executable, "-c", ATTACH_TO_WORKER, worker.address]
        run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=END_LIMIT_S)
        assert run.stdout.startswith("refused: "), run
        blind = [sys.executable, "-c", BLIND_BYTES, str(worker.port), str(tmp_path / "unpickled")]
        subprocess.run(blind, env=env, cwd=TREE, check=True, timeout=END_LIMIT_S)
        with unharmed(owner, worker):
            pass


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK", b"\x16\x03\x03\x00\x02xx"])
def test_a_program_reveals_nothing_to_another_user_who_occupies_the_port(
    owner: User, other_user: User, answer: bytes
) -> None:
    with other_user.start_python(LISTENER, answer.hex()) as listener:
        assert listener.stdout is not None
        address = listener.stdout.readline().strip()
        with running_job(owner, address) as job:
            assert job.outcome.startswith("refused: ")
            assert f"it has not proved to be a worker of user {owner.uid}" in job.outcome
            assert "start the worker at another port" in job.outcome
        listener.terminate()
        connections = [bytes.fromhex(line) for line in listener.stdout.read().split()]
    assert connections
    for heard in connections:
        # The first message of a TLS handshake, which contains no identity, and an alert.
        assert heard[:2] == b"\x16\x03"
        assert len(heard) < 512
        for secret in (b"token", b"owner", str(owner.home).encode()):
            assert secret not in heard


def test_a_program_refuses_the_worker_of_another_user(owner: User, other_user: User) -> None:
    with running_worker(other_user) as worker:
        with running_job(owner, worker) as job:
            assert f"it has not proved to be a worker of user {owner.uid}" in job.outcome
        assert "serves a job" not in worker.stop()


def test_another_user_cannot_read_the_credentials(owner: User, other_user: User) -> None:
    with running_worker(owner):
        folder = owner.home / ".mesh" / "local"
        (file,) = folder.iterdir()
        # The check must also hold if the user lets others into the home folder.
        owner.home.chmod(0o755)
        folder.parent.chmod(0o755)
        try:
            for command in (["ls", str(folder)], ["cat", str(file)], ["touch", str(folder / "x")]):
                assert "Permission denied" in other_user.run(command)
        finally:
            owner.home.chmod(0o700)


def test_credentials_in_a_folder_of_another_user_are_refused(
    owner: User, other_user: User, public_place: Path
) -> None:
    planted = public_place / "planted"
    planted.mkdir()
    planted.chmod(0o777)
    with running_worker(other_user, MESH_HOME=str(planted)):
        (planted / "local").chmod(0o755)
        said = owner.run(
            [owner.python, "-m", "mesh_core.worker", "--listen", "tcp://127.0.0.1:0"],
            env={"MESH_HOME": str(planted)},
        )
    assert f"{planted}/local belongs to user {other_user.uid}" in said
    assert "serves" not in said


def test_workers_of_one_user_that_start_concurrently_can_be_attached(owner: User) -> None:
    env = {"MESH_HOME": str(owner.home / "tmp" / "fresh")}
    command = [owner.python, "-m", "mesh_core.worker", "--listen", "tcp://127.0.0.1:0"]
    with ExitStack() as stack:
        started = [
            stack.enter_context(owner.popen(command, env=env, stdout=subprocess.PIPE))
            for _ in range(4)
        ]
        for worker in started:
            stack.callback(worker.terminate)
        addresses = [worker.stdout.readline().split()[-1] for worker in started if worker.stdout]
        with running_job(owner, *addresses, **env) as job:
            assert job.outcome == "ready"
            assert job.echo("all of them") == "all of them"
