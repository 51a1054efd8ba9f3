"""Port forwarding to ranks through the mesh."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from workers import END_LIMIT_S, loopback_hosts

from mesh_core import MeshError
from mesh_core.testing import kill_proc
from mesh_jobs import PortForwarder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mesh_core import HostMesh, ProcMesh


@contextmanager
def server(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """Serve loopback connections, each in a separate thread; yield the port."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:

        def accept() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=one, args=(accepted,), daemon=True).start()

        def one(accepted: socket.socket) -> None:
            with accepted:
                serve(accepted)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def echo(connection: socket.socket) -> None:
    while piece := connection.recv(65536):
        connection.sendall(piece)


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=END_LIMIT_S)


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while piece := connection.recv(65536):
        parts.append(piece)
    return b"".join(parts)


@contextmanager
def through(procs: ProcMesh, serve: Callable[[socket.socket], object]) -> Iterator[socket.socket]:
    """Yield a connection that is forwarded through the mesh to a server."""
    with (
        server(serve) as port,
        PortForwarder(procs, port) as forwarded,
        connect(forwarded.addresses.item()) as connection,
    ):
        yield connection


@pytest.fixture
def procs(hosts: HostMesh) -> Iterator[ProcMesh]:
    """A process on each of the two hosts."""
    procs = hosts.spawn_procs()
    yield procs
    procs.stop().get()


def test_a_port_of_a_rank_is_reached_from_the_program(procs: ProcMesh) -> None:
    with through(procs.slice(hosts=1), echo) as connection:
        connection.sendall(b"there and back")
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b"there and back"


def test_each_rank_connects_to_the_corresponding_rank(procs: ProcMesh) -> None:
    def name(number: int) -> Callable[[socket.socket], object]:
        return lambda connection: connection.sendall(b"%d" % number)

    with server(name(0)) as first, server(name(1)) as second:
        forwarder = PortForwarder(
            procs, lambda place: [first, second][place["hosts"]], src_proc_mesh=procs
        )
        with forwarder as forwarded:
            for number, address in enumerate(forwarded.addresses.values()):
                with connect(address) as connection:
                    assert read_all(connection) == b"%d" % number


def test_concurrent_connections_do_not_mix_their_data(procs: ProcMesh) -> None:
    with server(echo) as port, PortForwarder(procs.slice(hosts=0), port) as forwarded:

        def one(number: int) -> bool:
            said = bytes([number]) * 100_000
            with connect(forwarded.addresses.item()) as connection:
                sender = threading.Thread(target=connection.sendall, args=(said,))
                sender.start()
                heard = b"".join(iter(lambda: _exactly(connection, len(said)), b""))
                sender.join()
            return heard == said

        with ThreadPoolExecutor(40) as pool:
            assert all(pool.map(one, range(120)))


def _exactly(connection: socket.socket, length: int) -> bytes:
    parts = []
    while length and (piece := connection.recv(length)):
        parts.append(piece)
        length -= len(piece)
    if parts and not length:
        connection.shutdown(socket.SHUT_WR)
    return b"".join(parts)


def test_a_slow_reader_slows_the_writer_down(procs: ProcMesh) -> None:
    may_read = threading.Event()
    counted: list[int] = []

    def read_late(connection: socket.socket) -> None:
        may_read.wait(END_LIMIT_S)
        counted.append(len(read_all(connection)))

    total = 64 * 2**20
    with through(procs.slice(hosts=0), read_late) as connection:
        connection.settimeout(1.0)
        sent = 0
        with suppress(TimeoutError):
            while sent < total:
                sent += connection.send(bytes(2**16))
        # The limit includes the buffers of the kernel's sockets.
        assert sent < 32 * 2**20
        may_read.set()
        connection.settimeout(END_LIMIT_S)
        connection.sendall(bytes(total - sent))
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""
    assert counted == [total]


def test_closing_one_direction_leaves_the_other_open(procs: ProcMesh) -> None:
    def answer_at_the_end(connection: socket.socket) -> None:
        connection.sendall(b"%d" % len(read_all(connection)))

    with through(procs.slice(hosts=0), answer_at_the_end) as connection:
        connection.sendall(b"12345")
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b"5"


def test_a_connection_to_a_port_without_a_listener_is_reset(procs: ProcMesh) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    with (
        PortForwarder(procs.slice(hosts=0), free) as forwarded,
        connect(forwarded.addresses.item()) as connection,
        pytest.raises(ConnectionResetError),
    ):
        connection.recv(1)


def test_a_connection_reset_is_forwarded_to_the_other_side(procs: ProcMesh) -> None:
    def break_off(connection: socket.socket) -> None:
        connection.recv(1)
        # The connection is reset, as when a machine restarts.
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    with through(procs.slice(hosts=0), break_off) as connection:
        connection.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_a_connection_breaks_when_its_rank_dies() -> None:
    with loopback_hosts(1) as hosts:
        procs = hosts.spawn_procs()
        with server(echo) as port:
            forwarder = PortForwarder(procs, port)
            with connect(forwarder.addresses.values()[0]) as connection:
                connection.sendall(b"x")
                assert connection.recv(1) == b"x"
                kill_proc(procs.slice(hosts=0))
                with pytest.raises(ConnectionResetError):
                    connection.recv(1)
            forwarder.stop().exception()
        with pytest.raises(MeshError):
            procs.initialized.get()
        procs.stop().exception()


def test_an_address_in_use_raises_an_error(procs: ProcMesh) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="address already in use"):
            PortForwarder(procs.slice(hosts=0), 80, src_address=f"127.0.0.1:{port}")


def test_wrong_arguments_are_refused(procs: ProcMesh) -> None:
    with pytest.raises(ValueError, match="1 processes listen and 2 connect"):
        PortForwarder(procs, 80)
    with pytest.raises(ValueError, match="'x' is not a port: give 0 to 65535, or host:port"):
        PortForwarder(procs.slice(hosts=0), "x")
    with pytest.raises(ValueError, match="65536 is not a port"):
        PortForwarder(procs.slice(hosts=0), 1 << 16)
