"""The services of a worker without a job: health probes, and calls of its own user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from workers import END_LIMIT_S

from mesh_core.testing import wait_until

grpc = pytest.importorskip("grpc")
pytest.importorskip("grpc_reflection")

from controlled import processes  # noqa: E402
from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402

from mesh_jobs._control.client import ControlClient  # noqa: E402
from mesh_jobs._control.control_error import ControlError  # noqa: E402
from mesh_jobs._control.methods import METHODS  # noqa: E402
from mesh_jobs._control.pem_credentials import PemCredentials  # noqa: E402


@contextmanager
def lone_worker() -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run a worker on loopback with the credentials of its user, and with a health port."""
    command = [sys.executable, "-m", "mesh_jobs.worker", "--listen", "tcp://127.0.0.1:0"]
    worker = subprocess.Popen(
        [*command, "--mesh", "ones", "--rank", "0", "--health-port", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None
        told = next(line for line in worker.stdout if line.startswith("{"))
        yield worker, json.loads(told)
    finally:
        worker.terminate()
        worker.communicate(timeout=END_LIMIT_S)


@pytest.fixture(scope="module")
def alone() -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A worker for all tests that do not terminate it."""
    with lone_worker() as found:
        yield found


def test_a_health_watch_reports_that_the_worker_is_terminating() -> None:
    with (
        lone_worker() as (worker, told),
        grpc.insecure_channel(told["health"].partition("://")[2]) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        watching = stub.Watch(health_pb2.HealthCheckRequest(), timeout=END_LIMIT_S)
        states = health_pb2.HealthCheckResponse
        # The worker starts serving shortly after it has reported its address.
        assert wait_until(lambda: next(watching).status == states.SERVING)
        worker.send_signal(signal.SIGTERM)
        assert next(watching).status == states.NOT_SERVING
        assert worker.wait(END_LIMIT_S) == 0


def test_a_command_reports_whether_the_worker_is_healthy() -> None:
    with lone_worker() as (_, told):
        port = told["health"].rpartition(":")[2]

        def checked() -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "mesh_jobs.health", "--port", port]
            return subprocess.run(command, stdout=subprocess.PIPE, text=True)

        # The worker starts serving shortly after it has reported its address.
        assert wait_until(lambda: checked().returncode == 0, END_LIMIT_S)
        assert checked().stdout == "SERVING\n"
    gone = checked()
    assert gone.returncode == 1
    assert gone.stdout.startswith("UNAVAILABLE: ")


def test_the_probe_port_serves_only_the_health_service(
    alone: tuple[subprocess.Popen[str], dict[str, Any]],
) -> None:
    _, told = alone
    with grpc.insecure_channel(told["health"].partition("://")[2]) as probe:
        assert refusal(probe, METHODS["List"].path)[0] == "UNIMPLEMENTED"


def refusal(channel: Any, path: str) -> tuple[str, str]:
    """Calls a method with an empty request; returns the status and the details of its failure."""
    with pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary(path)(b"", timeout=END_LIMIT_S)
    error: Any = failed.value
    return error.code().name, error.details()


def test_programs_of_the_same_user_can_call_a_worker_without_credentials(
    alone: tuple[subprocess.Popen[str], dict[str, Any]],
) -> None:
    worker, told = alone
    assert told["control"].startswith("grpcs://127.0.0.1:")
    with ControlClient(told["control"], PemCredentials.local("controller")) as client:
        assert processes(client, "worker")[0]["pid"] == worker.pid


def test_a_worker_without_credentials_refuses_plaintext_calls_even_from_root(
    alone: tuple[subprocess.Popen[str], dict[str, Any]],
) -> None:
    worker, told = alone
    with grpc.insecure_channel(told["control"].partition("://")[2]) as plaintext:
        assert refusal(plaintext, METHODS["Stop"].path)[0] == "UNAVAILABLE"
    assert worker.poll() is None


def test_a_client_refuses_an_address_that_does_not_use_tls(
    alone: tuple[subprocess.Popen[str], dict[str, Any]],
) -> None:
    _, told = alone
    with pytest.raises(ControlError, match="does not use TLS"):
        ControlClient(told["health"], PemCredentials.local("controller"))


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("raise ModuleNotFoundError('no grpc', name='grpc')", "grpc is not installed"),
        ("raise RuntimeError('too old')", "it cannot be loaded: too old"),
    ],
)
def test_a_worker_without_grpcio_reports_that_it_has_no_control_service(
    tmp_path: Path, broken: str, why: str
) -> None:
    (tmp_path / "grpc.py").write_text(broken)
    command = [sys.executable, "-m", "mesh_jobs.worker", "--listen", "tcp://127.0.0.1:0"]
    command += ["--mesh", "ones", "--rank", "0"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run([*command, "--ttl", "0.1"], env=env, capture_output=True, text=True)
    told = next(json.loads(line) for line in run.stdout.splitlines() if line.startswith("{"))
    assert told["control"] is None
    assert told["control_error"] == f"{why}: pip install 'torchmesh-jobs[control]'"
    run = subprocess.run([*command, "--health-port", "0"], env=env, capture_output=True, text=True)
    assert run.returncode == 2
    assert f"mesh worker: health cannot be served: {why}" in run.stderr
