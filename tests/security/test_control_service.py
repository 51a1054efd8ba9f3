"""Only the user of a worker can call its control service."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.security.owner_programs import (
    END_LIMIT_S,
    Worker,
    running_job,
    running_worker,
)
from tests.security.users import TREE, User

pytest.importorskip("grpc")

#: Calls `List`, `Stop` and `Logs` of a control service, in plaintext or with the credentials of the
#: caller's user, and prints the outcome of each call.
CALL = """
import os, sys
os.environ["GRPC_VERBOSITY"] = "NONE"
import grpc
from mesh_core import Credentials
target, is_plain = sys.argv[1], sys.argv[2] == "plain"
if is_plain:
    channel = grpc.insecure_channel(target)
else:
    key, chain, authorities = Credentials.local().to_pem()
    proof = grpc.ssl_channel_credentials(authorities, key, chain)
    name = [("grpc.ssl_target_name_override", "worker.mesh")]
    channel = grpc.secure_channel(target, proof, name)
for method in ("List", "Stop"):
    try:
        channel.unary_unary(f"/mesh.control.v1.Control/{method}")(b"", timeout=20)
        print(method, "OK")
    except grpc.RpcError as error:
        print(method, error.code().name)
"""

#: Like `CALL` in plaintext, but from the local address of a socket of another user: a relay
#: connects to the service from that address and forwards the gRPC traffic.
CALL_FROM = """
import socket, sys, threading
from contextlib import suppress
target, own_port = sys.argv[1], int(sys.argv[3])
host, _, port = target.rpartition(":")
server = socket.create_server(("127.0.0.1", 0))
def copy(one, other):
    with suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
def relay():
    while True:
        caller, _ = server.accept()
        service = socket.socket()
        service.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        service.bind(("127.0.0.1", own_port))
        try:
            service.connect((host, int(port)))
        except OSError:
            caller.close()
            continue
        print("connected from", service.getsockname()[1], flush=True)
        for pair in ((caller, service), (service, caller)):
            threading.Thread(target=copy, args=pair, daemon=True).start()
threading.Thread(target=relay, daemon=True).start()
sys.argv[1] = f"127.0.0.1:{server.getsockname()[1]}"
"""

#: Holds a connection between two of its sockets, and prints the port of one of them.
HOLD_CONNECTION = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.bind(("127.0.0.1", 0))
    client.connect(server.getsockname())
    print(client.getsockname()[1], flush=True)
    sys.stdin.read()
"""


def control_of(worker: Worker) -> str:
    """Return the address of the control service as `host:port`."""
    scheme, _, target = str(worker.report["control"]).partition("://")
    assert scheme == "grpcs"
    return target


def check_unharmed(owner: User, worker: Worker) -> None:
    """Check that the worker accepts a job of its user, who can also call its control service."""
    assert "List OK" in owner.run_python(CALL.replace('"List", "Stop"', '"List",'), *own(worker))
    with running_job(owner, worker) as job:
        assert job.outcome == "ready"
        assert job.echo("still here") == "still here"


def own(worker: Worker) -> tuple[str, str]:
    """Return the arguments of `CALL` with credentials."""
    return control_of(worker), "proved"


@pytest.mark.parametrize("how", ["plain", "proved"])
def test_another_user_is_refused_while_a_job_runs(owner: User, other_user: User, how: str) -> None:
    with running_worker(owner, with_control=True) as worker:
        with running_job(owner, worker) as job:
            assert job.outcome == "ready"
            said = other_user.run_python(CALL, control_of(worker), how)
            assert said.split() == ["List", "UNAVAILABLE", "Stop", "UNAVAILABLE"]
            assert job.echo("still here") == "still here"
        check_unharmed(owner, worker)


def test_a_shared_local_port_does_not_impersonate_its_user(owner: User, other_user: User) -> None:
    with (
        running_worker(owner, with_control=True) as worker,
        owner.start_python(HOLD_CONNECTION) as victim,
    ):
        assert victim.stdout is not None
        port = victim.stdout.readline().strip()
        with running_job(owner, worker) as job:
            assert job.outcome == "ready"
            said = other_user.run_python(CALL_FROM + CALL, control_of(worker), "plain", port)
            assert f"connected from {port}" in said, said
            assert "List OK" not in said
            assert "Stop OK" not in said
            assert job.echo("still here") == "still here"
        victim.terminate()
        check_unharmed(owner, worker)


def test_root_without_credentials_is_refused(owner: User, tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(TREE)}
    env.pop("MESH_HOME", None)
    with running_worker(owner, with_control=True) as worker:
        for how in ("plain", "proved"):
            command = [sys.executable, "-c", CALL, control_of(worker), how]
            run = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=END_LIMIT_S
            )
            assert run.stdout.split() == ["List", "UNAVAILABLE", "Stop", "UNAVAILABLE"], run
        check_unharmed(owner, worker)
