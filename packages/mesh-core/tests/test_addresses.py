"""Addresses of workers: every valid form, and the errors for invalid ones."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from workers import WorkerProcess

from mesh_core import (
    Actor,
    Credentials,
    HostDied,
    attach_to_workers,
    configured,
    endpoint,
    shutdown_context,
)
from mesh_core._hosts.address import DEFAULT_PORT, Address
from mesh_core._hosts.route import Route
from mesh_core._workers.listen_address import ListenAddress
from mesh_core.compat import run_worker_loop_forever

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


LIMIT_S = 30


class Echo(Actor):
    """Returns its argument."""

    @endpoint
    def echo(self, value: int) -> int:
        """Return the argument."""
        return value


@pytest.fixture
def fresh_job() -> Iterator[None]:
    """Give each test a separate job, because hosts belong to one job."""
    yield
    shutdown_context().get()


@pytest.fixture
def unused_address() -> Iterator[str]:
    """Return an address of this machine at which no process can listen during the test."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{reserved.getsockname()[1]}"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("tcp://node7:4", "node7", 4),
        ("tls://node7:4", "node7", 4),
        ("node7:4", "node7", 4),
        ("node7", "node7", DEFAULT_PORT),
        ("tcp://10.0.0.1:4", "10.0.0.1", 4),
        ("tcp://[fd00::1]:4", "fd00::1", 4),
        ("[::1]", "::1", DEFAULT_PORT),
        ("::1", "::1", DEFAULT_PORT),
        ("tcp://*:0", "*", 0),
        ("tcp://:4", "*", 4),
        ("tcp://[::]:0", "*", 0),
        ("tcp://0.0.0.0:4", "*", 4),
    ],
)
def test_a_valid_address_is_parsed(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://node7:4", "has scheme 'http': write tcp://host:port"),
        ("ipc:///tmp/worker", "workers listen on TCP; tcp://127.0.0.1:PORT serves only"),
        ("tcp://node7:", "has port '': give a number from 0 to 65535"),
        ("tcp://node7:http", "has port 'http'"),
        ("tcp://node7:65536", "has port '65536'"),
        ("tcp://[::1:4", "write IPv6 as"),
        ("tcp://a:b:c", "write tcp://host:port"),
        ("tcp://node7:4/job", "write tcp://host:port"),
        ("tcp://node 7:4", "write tcp://host:port"),
        ("", "has no host"),
        ("tcp://*:4", "does not name a machine: use a host name or an address"),
        ("tcp://[::]:4", "does not name a machine"),
        ("tcp://node7:0", "has port 0: use the port that the worker printed"),
    ],
)
def test_attach_to_workers_refuses_an_invalid_address(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"tcp|port|host|machine") as caught:
        attach_to_workers([text])
    assert why in str(caught.value)
    with pytest.raises(ValueError, match=r"tcp|port|host|machine") as caught:
        attach_to_workers(["tcp://127.0.0.1:1"], gateway=text)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("tcp://192.0.2.1:0", "credentials"),
        ("tcp://*:0", "refused to listen on tcp://*:0 without credentials"),
        ("tcp://[::]:0", "refused to listen"),
        ("tcp://no-such-host.invalid:0", "refused to listen"),
    ],
)
def test_a_worker_refuses_to_listen_for_other_machines_without_credentials(
    address: str, why: str
) -> None:
    with pytest.raises(ValueError, match="refused to listen") as caught:
        run_worker_loop_forever(address)
    assert why in str(caught.value)


def test_the_error_says_why_a_worker_cannot_listen(tmp_path: Path) -> None:
    Credentials.create().issue(role="worker", name="w").save(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(OSError, match="is in use: stop the process"):
            run_worker_loop_forever(taken)
    with pytest.raises(OSError, match="is not one of this machine"):
        run_worker_loop_forever("tcp://192.0.2.1:0", credentials=tmp_path)
    with pytest.raises(OSError, match="cannot be resolved here: correct it"):
        run_worker_loop_forever("tcp://no-such-host.invalid:0", credentials=tmp_path)


def why_not(*workers: str, gateway: str | None = None) -> str:
    """Return the error of an attempt to attach."""
    with configured(attach_timeout_s=0.1):
        hosts = attach_to_workers(workers, gateway=gateway)
        with pytest.raises(HostDied) as caught:
            hosts.initialized.get(timeout=30)
    return str(caught.value)


def turn_away(stranger: socket.socket) -> None:
    """Accept connections and close them until the socket is closed."""
    with suppress(OSError):
        while True:
            stranger.accept()[0].close()


@pytest.mark.usefixtures("fresh_job")
def test_an_attach_error_says_what_happened_and_what_to_do(unused_address: str) -> None:
    assert "connection refused: start the worker, or correct" in why_not(unused_address)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        threading.Thread(target=turn_away, args=(stranger,), daemon=True).start()
        silent = f"tcp://127.0.0.1:{stranger.getsockname()[1]}"
        said = why_not(silent)
        assert "has not proved to be a worker of user" in said
        assert "start the worker at another port" in said
    with WorkerProcess() as worker:
        said = why_not(worker.address, gateway=unused_address)
        unused = unused_address.removeprefix("tcp://")
        assert f"the gateway {unused} cannot be reached: connection refused" in said
        said = why_not(unused_address, gateway=worker.address)
        assert (
            f"from the gateway {worker.address.removeprefix('tcp://')}: connection refused" in said
        )


def test_routes_between_hosts_use_gateways_only_where_needed() -> None:
    here = Route(["127.0.0.1:1"], is_here=True)
    there, other = Route(["10.0.0.1:1"]), Route(["10.0.0.2:1"])
    behind, beside = (Route([f"n{n}:1"], ["login:1"]) for n in range(2))
    assert there.towards(other) == (["10.0.0.2:1"], [])
    # A worker that listens only for its own machine must connect to the others itself.
    assert there.towards(here) is None
    assert here.towards(there) == (["10.0.0.1:1"], [])
    # Neighbours behind a gateway connect directly.
    assert behind.towards(beside) == (["n1:1"], [])
    assert there.towards(behind) == (["n0:1"], ["login:1"])
    assert behind.towards(there) == (["10.0.0.1:1"], [])


class TestListenAddress:
    def test_clients_use_the_first_address_and_the_worker_listens_on_the_second(self) -> None:
        address = ListenAddress.parse("tcp://login.example.org:40007@tcp://127.0.0.1:0")
        with address.listen() as listener:
            assert listener.getsockname()[0] == "127.0.0.1"
            assert str(address.reached_at(listener)) == "tcp://login.example.org:40007"

    def test_port_0_before_the_at_sign_means_the_listening_port(self) -> None:
        address = ListenAddress.parse("tcp://login:0@tcp://127.0.0.1:0")
        with address.listen() as listener:
            assert address.reached_at(listener) == Address("login", listener.getsockname()[1])

    def test_an_inherited_socket_is_used(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = ListenAddress.parse(f"fd://{os.dup(server.fileno())}")
            with address.listen() as listener:
                assert listener.getsockname() == server.getsockname()
                assert address.reached_at(listener) == Address(*server.getsockname())

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("tcp://*:1@tcp://*:2", "does not name a machine before the @"),
            ("fd://stdin", "is not a descriptor: write fd://3"),
            ("fd://99999", "is not a socket of this process: Bad file descriptor"),
            ("fd://{connected}", "is not a listening TCP socket"),
            ("fd://{local}", "is not a listening TCP socket"),
        ],
    )
    def test_an_invalid_listen_address_is_refused(self, text: str, why: str) -> None:
        with socket.socket() as connected, socket.socket(socket.AF_UNIX) as local:
            numbers = {"connected": connected.fileno(), "local": local.fileno()}
            with pytest.raises(ValueError, match=r"fd|tcp") as caught:
                ListenAddress.parse(text.format(**numbers))
            assert why in str(caught.value)
            assert connected.fileno() >= 0


def test_a_worker_serves_on_an_inherited_socket_and_prints_its_alias(fresh_job: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        listen = f"tcp://localhost:{port}@fd://{server.fileno()}"
        worker = WorkerProcess(listen=listen, pass_fds=[server.fileno()])
    with worker:
        assert worker.address == f"tcp://localhost:{port}"
        hosts = attach_to_workers([f"{worker.address}@tcp://127.0.0.1:1"])
        with hosts.spawn_procs({"procs": 2}) as procs:
            assert procs.spawn("echo", Echo).echo.call(3).get(timeout=LIMIT_S).values() == [3, 3]
