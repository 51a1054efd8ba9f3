"""Authorization of calls to the control service of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh_core import Credentials

grpc = pytest.importorskip("grpc")
pytest.importorskip("grpc_reflection")

from controlled import Applied, applied_job  # noqa: E402
from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # noqa: E402

from mesh_jobs._control.client import ControlClient  # noqa: E402
from mesh_jobs._control.control_error import ControlError  # noqa: E402
from mesh_jobs._control.methods import METHODS  # noqa: E402
from mesh_jobs._control.pem_credentials import SERVER_NAME, PemCredentials  # noqa: E402

CALL_S = 10.0


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Applied]:
    """A job for all tests that do not affect its worker."""
    with applied_job(tmp_path_factory.mktemp("control")) as one:
        yield one


def secured(applied: Applied, pem: PemCredentials | None) -> Any:
    """Open a channel to the control port with the given credentials."""
    words = {} if pem is None else {"private_key": pem.key, "certificate_chain": pem.chain}
    proof = grpc.ssl_channel_credentials(applied.pem.authorities, **words)
    options = [("grpc.ssl_target_name_override", SERVER_NAME)]
    return grpc.secure_channel(applied.target, proof, options)


def status_of(channel: Any) -> tuple[str, str]:
    """Make a call that must fail, and return the status and the details of its failure."""
    with channel, pytest.raises(grpc.RpcError) as failed:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=CALL_S)
    error: Any = failed.value
    return error.code().name, error.details()


def test_a_host_is_reached_through_another_host(applied: Applied, tmp_path: Path) -> None:
    with applied_job(tmp_path) as other:
        with (
            applied.client() as gateway,
            ControlClient(other.control, other.pem, gateway) as client,
        ):
            assert client.list_processes().host.address == other.report.address
            followed = client.logs(10, follow=True)
            assert next(followed).text.startswith("mesh worker serves tcp://")
        Credentials.create().save(tmp_path / "others")
        wrong = PemCredentials.load(tmp_path / "others")
        with (
            applied.client() as gateway,
            ControlClient(other.control, wrong, gateway) as client,
            pytest.raises(ControlError) as refused,
        ):
            client.list_processes()
        assert refused.value.is_unreachable


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [
        ("", "INVALID_ARGUMENT", "'' is not an address"),
        ("nowhere", "INVALID_ARGUMENT", "'nowhere' is not an address"),
        ("127.0.0.1:0", "INVALID_ARGUMENT", "'127.0.0.1:0' is not an address"),
        ("127.0.0.1:1", "UNAVAILABLE", "127.0.0.1:1 cannot be reached from here"),
    ],
)
def test_an_impossible_relay_is_refused_with_a_reason(
    applied: Applied, address: str, code: str, words: str
) -> None:
    method = METHODS["Relay"]
    with secured(applied, applied.pem) as channel:
        call = channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        answers = call(iter([method.request(address=address)]), timeout=CALL_S)
        with pytest.raises(grpc.RpcError) as failed:
            next(answers)
    error: Any = failed.value
    assert (error.code().name, error.details().startswith(words)) == (code, True)


def test_only_controllers_of_the_job_may_call(applied: Applied, tmp_path: Path) -> None:
    others = Credentials.create()
    others.save(tmp_path / "others")
    folder = Path(applied.job.folder, "keys", "controller")
    Credentials.load(folder).issue(role="worker", name="spy").save(tmp_path / "worker")
    code, words = status_of(secured(applied, PemCredentials.load(tmp_path / "worker")))
    assert (code, words) == (
        "PERMISSION_DENIED",
        "your certificate is for a worker of the job: only controllers may call",
    )
    assert status_of(secured(applied, PemCredentials.load(tmp_path / "others")))[0] == "UNAVAILABLE"
    assert status_of(secured(applied, None))[0] == "UNAVAILABLE"
    assert status_of(grpc.insecure_channel(applied.target))[0] == "UNAVAILABLE"
    with applied.client() as controller:
        assert controller.is_healthy()


def test_a_worker_of_another_job_is_not_trusted(applied: Applied, tmp_path: Path) -> None:
    Credentials.create().save(tmp_path / "others")
    with ControlClient(applied.control, PemCredentials.load(tmp_path / "others")) as other:
        with pytest.raises(ControlError, match="does not respond") as refused:
            other.list_processes()
        assert refused.value.is_unreachable


def test_reflection_lists_the_services(applied: Applied) -> None:
    with secured(applied, applied.pem) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(
                file_containing_symbol="mesh.control.v1.Control"
            ),
        ]
        listed, file = stub.ServerReflectionInfo(iter(asked), timeout=CALL_S)
    names = {one.name for one in listed.list_services_response.service}
    assert names == {
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "mesh.control.v1.Control",
    }
    assert file.file_descriptor_response.file_descriptor_proto
