"""Hosts look like separate machines to programs, and reach each other."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.conftest import Worlds
from tests.hosts.echo import EchoServer
from tests.hosts.world import EnclosureGone, Host, HostOff, World

PORT = 7000

LISTEN_AND_TELL_THE_PEER = f"""
import socket
with socket.create_server(("::", {PORT}), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    print("ready", flush=True)
    for _ in range(2):
        connection, peer = server.accept()
        with connection:
            connection.sendall(peer[0].removeprefix("::ffff:").encode())
"""

CONNECT_AND_PRINT = f"""
import socket, sys
families = {{4: socket.AF_INET, 6: socket.AF_INET6}}
for number in (4, 6):
    found = socket.getaddrinfo(sys.argv[1], {PORT}, families[number], socket.SOCK_STREAM)
    with socket.socket(families[number]) as connection:
        connection.settimeout(10)
        connection.connect(found[0][4])
        print(connection.recv(100).decode())
"""


@pytest.mark.hosts(["client", "worker", "spare"])
def test_hosts_reach_each_other_by_name_over_ipv4_and_ipv6(world: World) -> None:
    client, worker = world["client"], world["worker"]
    with worker.start_python(LISTEN_AND_TELL_THE_PEER) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        seen = client.python(CONNECT_AND_PRINT, "worker").split()
    assert seen == [client.address, client.address6]


def test_hosts_reach_nothing_but_each_other(world: World) -> None:
    (host, _) = world
    cards = os.listdir("/sys/class/net")
    shown = host.run(["ip", "-o", "link"]).stdout
    assert len(shown.splitlines()) == 2, shown
    with pytest.raises(OSError, match="unreachable"):
        host.connect("192.0.2.1", 80)
    assert os.listdir("/sys/class/net") == cards, "the machine's own network changed"


def test_each_host_has_its_own_name_processes_and_private_folders(world: World) -> None:
    for host in world:
        assert host.python("import socket; print(socket.gethostname())").strip() == host.name
        # This fails if the folders of the other host are visible.
        host.run(["sh", "-c", "for d in /tmp /var/tmp /run /dev/shm $HOME; do mkdir $d/mine; done"])
    for host in world:
        listed = host.run(["ps", "-e", "-o", "pid="]).stdout.split()
        assert len(listed) == 2, "not only the agent and ps"
    assert not Path("/tmp/mine").exists()


def test_hosts_see_the_folder_of_the_test(world: World, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("from outside")
    for host in world:
        host.run(["sh", "-c", "cat given > $HOSTNAME"], cwd=tmp_path)
    assert [(tmp_path / host.name).read_text() for host in world] == ["from outside"] * 2


def test_congestion_control_is_chosen_per_world(worlds: Worlds) -> None:
    for chosen in ("reno", "cubic"):
        (one, other) = worlds(2, congestion_control=chosen)
        with EchoServer(other), one.connect(other.address, EchoServer.PORT) as connection:
            used = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert used.rstrip(b"\0").decode() == chosen


def test_the_error_of_a_failed_command_contains_its_output(world: World) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        world["h0"].run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (caught.value.returncode, caught.value.output, caught.value.stderr) == (
        3,
        "out\n",
        "err\n",
    )
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        world["h0"].run(["no-such-program"])


def test_a_command_is_killed_at_its_timeout(world: World) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        world["h0"].run(["sleep", "600"], timeout=0.2)
    assert world["h0"].pids() == []


def test_a_process_reports_its_signal_and_its_pid_outside_the_host(world: World) -> None:
    with world["h0"].popen(["sleep", "600"]) as process:
        assert process.poll() is None
        assert world["h0"].pids() == [process.pid]
        process.terminate()
        assert process.wait(10) == -15


def test_input_and_output_can_be_larger_than_a_pipe_buffer(world: World) -> None:
    text = "line\n" * 200_000
    assert world["h0"].run(["cat"], given=text).stdout == text


def test_a_host_is_freshly_booted_after_a_power_cut(world: World) -> None:
    (one, other) = world
    other.run(["mkdir", "/tmp/mine"])
    process = other.popen(["sleep", "600"])
    other.power_cut()
    assert process.wait(10) == -9
    assert not other.is_on
    with pytest.raises(HostOff, match="power_on"):
        other.run(["true"])
    other.power_on()
    other.run(["mkdir", "/tmp/mine"])
    assert_echo(one, other)


def test_a_world_can_be_created_without_root(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = subprocess.run(["unshare", "--user", "true"], capture_output=True).returncode == 0
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    if allowed:
        (one, other) = worlds(2)
        assert_echo(one, other)
        with worlds(2) as world, world.faults.link_down(world["h0"]):
            assert world["h0"].is_on
    else:
        with pytest.raises(EnclosureGone, match="unshare"):
            worlds(2)


@pytest.mark.hosts(["client", "worker"], behind_nat=["client"])
def test_a_host_behind_nat_can_connect_but_cannot_be_reached(world: World) -> None:
    client, worker = world
    with client.listen(PORT):
        for address in (worker.address, worker.address6):
            with (
                worker.listen(PORT) as listener,
                client.connect(address, PORT) as connection,
            ):
                accepted, peer = listener.accept()
                with accepted:
                    own, seen = connection.getsockname()[0], peer[0].removeprefix("::ffff:")
                    assert seen in (client.address, client.address6)
                    assert own in (client.place.own_address, client.place.own_address6)
                    assert own != seen
                    connection.sendall(b"hello")
                    assert accepted.recv(5) == b"hello"
        for address in (client.address, client.address6):
            with pytest.raises(TimeoutError):
                worker.connect(address, PORT, 0.25)
    assert_echo(client, worker)


def test_python_of_the_tests_runs_on_hosts(world: World) -> None:
    assert world["h0"].python("import sys; print(sys.prefix)").strip() == sys.prefix
    world["h0"].python("import pytest")


def assert_echo(one: Host, other: Host) -> None:
    with EchoServer(other):
        for address in (other.address, other.address6):
            with one.connect(address, EchoServer.PORT) as connection:
                connection.sendall(b"hello")
                assert connection.recv(100) == b"hello"
