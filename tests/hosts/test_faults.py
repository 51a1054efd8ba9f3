"""Each fault has its documented effect, and no effect after it is healed."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.hosts.echo import EchoServer
from tests.hosts.world import Fault, Host, World

PORT = EchoServer.PORT

#: Long enough for a reply to arrive; a test that expects silence waits for all of it.
SILENCE_S = 0.25

#: Exceeds the duration of everything that does arrive, also on a busy machine.
LIMIT_S = 20.0


@pytest.fixture
def pair(world: World) -> Iterator[tuple[Host, Host]]:
    """Two hosts, with an echo server on the second."""
    one, other, *_ = world
    with EchoServer(other):
        yield one, other


def answers(one: Host, other: Host, *, is_v6: bool = False, limit_s: float = LIMIT_S) -> bool:
    """Return whether a new connection is established and echoes."""
    address = other.address6 if is_v6 else other.address
    try:
        with one.connect(address, PORT, limit_s) as connection:
            return echoes(connection, limit_s)
    except TimeoutError:
        return False


def is_silent(one: Host, other: Host, *, is_v6: bool = False) -> bool:
    """Return whether nothing arrives, not even a refusal."""
    return not answers(one, other, is_v6=is_v6, limit_s=SILENCE_S)


def echoes(connection: socket.socket, limit_s: float = LIMIT_S) -> bool:
    connection.settimeout(limit_s)
    try:
        connection.sendall(b"x")
        return connection.recv(1) == b"x"
    except TimeoutError:
        return False


@pytest.mark.parametrize(
    "make",
    [
        lambda world, one, other: world.faults.link_down(other),
        lambda world, one, other: world.faults.partition([one]),
        lambda world, one, other: world.faults.drop(one, other),
        lambda world, one, other: world.faults.drop(one, other, is_one_way=True),
        lambda world, one, other: world.faults.drop(other, one, is_one_way=True),
        lambda world, one, other: world.faults.pause(other),
    ],
    ids=["link_down", "partition", "drop", "drop there", "drop back", "pause"],
)
def test_a_blocked_link_passes_nothing_and_loses_nothing_once_healed(
    world: World, pair: tuple[Host, Host], make: Callable[[World, Host, Host], Fault]
) -> None:
    one, other = pair
    with one.connect(other.address, PORT) as connection:
        assert echoes(connection)
        with make(world, one, other) as fault:
            assert not echoes(connection, SILENCE_S)
            assert is_silent(one, other)
            assert is_silent(one, other, is_v6=True)
        assert fault.is_healed
        connection.settimeout(LIMIT_S)
        assert connection.recv(1) == b"x", "what was sent in the meantime arrives"
        assert echoes(connection)
    assert answers(one, other)
    assert answers(one, other, is_v6=True)


@pytest.mark.hosts(4)
def test_a_partition_keeps_each_side_connected(world: World) -> None:
    h0, h1, h2, h3 = world
    with EchoServer(h1), EchoServer(h3):
        with world.faults.partition([h0, h1]):
            assert answers(h0, h1)
            assert answers(h2, h3)
            assert is_silent(h0, h3)
            assert is_silent(h2, h1)
        assert answers(h0, h3)


def test_faults_overlap_and_heal_in_any_order(world: World, pair: tuple[Host, Host]) -> None:
    one, other = pair
    first, second = world.faults.link_down(other), world.faults.link_down(other)
    third = world.faults.drop(one, other)
    first.heal()
    first.heal()
    assert is_silent(one, other)
    second.heal()
    assert is_silent(one, other)
    third.heal()
    assert answers(one, other)


@pytest.mark.parametrize("percent", [5, 20])
def test_packet_loss_has_the_requested_percentage(world: World, percent: int) -> None:
    one, other = world
    count = 4000
    with datagrams(other) as there, datagrams(one) as here, world.faults.loss(percent):
        for number in range(count):
            here.sendto(b"%d" % number, (other.address, PORT))
        arrived = len(drained(there))
    # At most five standard deviations.
    assert arrived / count == pytest.approx(1 - percent / 100, abs=0.032)


def test_a_transfer_completes_at_20_percent_packet_loss(
    world: World, pair: tuple[Host, Host]
) -> None:
    one, other = pair
    # After each loss in a row, TCP waits twice as long before it sends again.
    with world.faults.loss(20), one.connect(other.address, PORT, 100.0) as connection:
        assert round_trip(connection, 30_000)


def test_a_reset_closes_connections_and_refuses_new_ones(
    world: World, pair: tuple[Host, Host]
) -> None:
    one, other = pair
    with one.connect(other.address, PORT) as v4, one.connect(other.address6, PORT) as v6:
        assert echoes(v4)
        assert echoes(v6)
        with world.faults.reset(one, other):
            for connection in (v4, v6):
                with pytest.raises(ConnectionError):
                    connection.recv(1)
            for address in (other.address, other.address6):
                with pytest.raises(ConnectionRefusedError):
                    one.connect(address, PORT)
    assert answers(one, other)


def test_a_single_reset_closes_connections_and_allows_new_ones(
    world: World, pair: tuple[Host, Host]
) -> None:
    one, other = pair
    with one.listen(PORT) as listener, one.connect(other.address, PORT) as outgoing:
        incoming = other.connect(one.address6, PORT)
        accepted, _ = listener.accept()
        with incoming, accepted:
            world.faults.reset_once(one, other)
            for connection in (outgoing, incoming, accepted):
                with pytest.raises(ConnectionError):
                    connection.recv(1)
    assert answers(one, other)
    assert answers(one, other, is_v6=True)


@pytest.mark.parametrize("limited", ["sender", "receiver"])
def test_bandwidth_is_limited_in_each_direction(world: World, limited: str) -> None:
    sender, receiver = world
    rate = 40_000_000
    host = sender if limited == "sender" else receiver
    with world.faults.bandwidth(host, rate):
        assert measured_rate(sender, receiver, 5_000_000) == pytest.approx(rate, rel=0.2)
    assert measured_rate(sender, receiver, 5_000_000) > 2 * rate


def test_bandwidth_stays_limited_after_a_power_cut(world: World) -> None:
    one, other = world
    rate = 40_000_000
    with world.faults.bandwidth(other, rate):
        world.faults.power_cut(other).heal()
        assert measured_rate(one, other, 4_000_000) == pytest.approx(rate, rel=0.2)
        assert measured_rate(other, one, 4_000_000) == pytest.approx(rate, rel=0.2)


@pytest.mark.parametrize("is_v6", [False, True], ids=["v4", "v6"])
def test_delay_is_added_each_way(world: World, pair: tuple[Host, Host], is_v6: bool) -> None:
    one, other = pair
    address = other.address6 if is_v6 else other.address
    with world.faults.delay(one, other, 0.02):
        started = time.monotonic()
        with one.connect(address, PORT) as connection:
            connecting = time.monotonic() - started
            times = [timed_echo(connection) for _ in range(15)]
    assert connecting >= 0.04, "a handshake takes its time too"
    assert min(times) >= 0.04
    assert min(times) < 0.06
    with one.connect(address, PORT) as connection:
        assert min(timed_echo(connection) for _ in range(15)) < 0.02


def test_one_way_delay_and_jitter_keep_the_order(world: World) -> None:
    one, other = world
    count = 400
    with (
        datagrams(other) as there,
        datagrams(one) as here,
        world.faults.delay(one, other, 0.01, jitter_s=0.02, is_one_way=True),
    ):
        for number in range(count):
            here.sendto(b"%d" % number, (other.address, PORT))
        arrived = drained(there)
    assert arrived == list(range(count))


def test_a_link_with_delay_has_a_high_throughput(world: World, pair: tuple[Host, Host]) -> None:
    one, other = pair
    with world.faults.delay(one, other, 0.01):
        assert measured_rate(one, other, 30_000_000) > 100e6


def test_a_power_cut_is_silent_but_a_process_exit_closes_connections(
    world: World, pair: tuple[Host, Host]
) -> None:
    one, other = pair
    with one.connect(other.address, PORT) as connection:
        assert echoes(connection)
        with world.faults.power_cut(other):
            # Until then, the kernel may send other packets, for example for IPv6.
            before = other.traffic()
            assert other.pids() == []
            connection.settimeout(SILENCE_S)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            assert is_silent(one, other)
            assert other.traffic().bytes_out == before.bytes_out
        with pytest.raises(ConnectionResetError):
            # The host is up again and has no state of the connection.
            await_end(connection)
    with EchoServer(other) as server, one.connect(other.address, PORT) as connection:
        assert echoes(connection)
        server.process.kill()
        connection.settimeout(LIMIT_S)
        assert connection.recv(1) == b""


def test_faults_outlast_a_power_cut(world: World) -> None:
    one, other = world
    with world.faults.drop(one, other), world.faults.link_down(other):
        world.faults.power_cut(other).heal()
        with EchoServer(other):
            assert is_silent(one, other)
    with EchoServer(other):
        assert answers(one, other)


def test_a_pause_stops_all_processes_at_once(world: World) -> None:
    host = world["h0"]
    with host.popen(["sh", "-c", "sleep 600 & sleep 600 & wait"]):
        while len(host.pids()) < 3:
            pass
        with world.faults.pause(host):
            assert {state(pid) for pid in host.pids()} == {"T"}
            assert host.run(["echo", "a look inside"]).stdout == "a look inside\n"
        assert "T" not in {state(pid) for pid in host.pids()}


def test_traffic_counts_the_bytes_of_each_link(world: World) -> None:
    one, other = world
    payload = 5_000_000
    before = one.traffic(), other.traffic()
    measured_rate(one, other, payload)
    sent, received = one.traffic() - before[0], other.traffic() - before[1]
    assert payload <= sent.bytes_out <= 1.5 * payload
    assert payload <= received.bytes_in <= 1.5 * payload
    assert sent.bytes_in < 0.1 * payload
    assert sent.packets_out >= payload / 65536
    other.power_cut()
    assert other.traffic().bytes_in >= (before[1] + received).bytes_in
    other.power_on()
    assert other.traffic().bytes_in >= (before[1] + received).bytes_in


def await_end(connection: socket.socket) -> None:
    while not echoes(connection, SILENCE_S):
        pass


def datagrams(host: Host) -> socket.socket:
    opened = host.open_socket(kind=socket.SOCK_DGRAM)
    # Larger than all data that is sent at once. SO_RCVBUFFORCE overrides the limit of the machine.
    opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    opened.bind((host.address, PORT))
    return opened


SO_RCVBUFFORCE = 33


def drained(source: socket.socket) -> list[int]:
    """Return the numbers in the datagrams that arrive, until no datagram arrives for a while."""
    source.settimeout(SILENCE_S)
    numbers = []
    with contextlib.suppress(TimeoutError):
        while True:
            numbers.append(int(source.recv(100)))
    return numbers


def timed_echo(connection: socket.socket) -> float:
    started = time.monotonic()
    connection.sendall(b"x")
    assert connection.recv(1) == b"x"
    return time.monotonic() - started


def round_trip(connection: socket.socket, size: int) -> bool:
    """Send `size` bytes and return whether the same bytes come back."""
    payload = bytes(number % 251 for number in range(size))
    feeder = threading.Thread(target=connection.sendall, args=(payload,))
    feeder.start()
    received = bytearray()
    while len(received) < size and (piece := connection.recv(1 << 16)):
        received += piece
    feeder.join()
    return bytes(received) == payload


def measured_rate(sender: Host, receiver: Host, size: int) -> float:
    """Send `size` bytes over one connection, and return their rate in bits per second."""
    with (
        receiver.listen(PORT + 1) as listener,
        sender.connect(receiver.address, PORT + 1, 30.0) as connection,
        listener.accept()[0] as accepted,
    ):
        feeder = threading.Thread(target=connection.sendall, args=(bytes(size),))
        feeder.start()
        accepted.settimeout(30)
        # The first data fills buckets and buffers, so the measurement starts after it.
        received = receive(accepted, size // 10)
        started = time.monotonic()
        timed = receive(accepted, size - received)
        took = time.monotonic() - started
        feeder.join()
    return timed * 8 / took


def receive(source: socket.socket, size: int) -> int:
    """Receive at least `size` bytes, and return their number."""
    received = 0
    while received < size and (piece := source.recv(1 << 18)):
        received += len(piece)
    assert received >= size
    return received


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]
