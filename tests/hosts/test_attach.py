"""Programs attach workers on other hosts by every kind of address."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.hosts.cluster import Program, WorkerCluster, steps
from tests.hosts.cluster.cluster import PORT
from tests.hosts.conftest import Worlds

#: Settings of a job in which no test needs long timeouts.
BRISK = {"attach_timeout_s": 20.0}


def names(where: list[tuple[str, int]]) -> list[str]:
    return [name for name, _ in where]


def test_actors_run_on_the_hosts_in_the_given_order(
    cluster: WorkerCluster, program: Program
) -> None:
    assert program.do(steps.attach, cluster.addresses(), cluster.keys, BRISK) == [4]
    where = program.do(steps.spawn, 2)
    assert names(where) == ["w0", "w0", "w1", "w1", "w2", "w2", "w3", "w3"]
    assert len(set(where)) == 8
    assert program.do(steps.echo, "x") == ["x"] * 8
    assert program.do(steps.ask_each_other, 0, 3) == 7
    assert program.do(steps.ask_each_other, 3, 0) == 7
    assert program.end() == 0


@pytest.mark.parametrize("way", ["name", "IPv4", "IPv6", "no scheme"])
def test_a_worker_is_reached_by_each_kind_of_address(
    cluster: WorkerCluster, program: Program, way: str
) -> None:
    w0 = cluster.hosts[0]
    address = {
        "name": f"tcp://w0:{PORT}",
        "IPv4": f"tcp://{w0.address}:{PORT}",
        "IPv6": f"tcp://[{w0.address6}]:{PORT}",
        "no scheme": f"w0:{PORT}",
    }[way]
    program.do(steps.attach, [address], cluster.keys, BRISK)
    assert names(program.do(steps.spawn)) == ["w0"]
    assert program.do(steps.echo, "x") == ["x"]


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_worker_that_listens_on_one_address_is_found_by_its_name(
    cluster: WorkerCluster, program: Program, family: str
) -> None:
    w0, w1, *_ = cluster.hosts
    try:
        for host in (w0, w1):
            own = host.address if family == "IPv4" else f"[{host.address6}]"
            cluster.start_worker(host, f"tcp://{own}:{PORT}")
        program.do(steps.attach, cluster.addresses([w0, w1]), cluster.keys, BRISK)
        assert names(program.do(steps.spawn)) == ["w0", "w1"]
        # The workers, too, find each other through the addresses that the client resolved.
        assert program.do(steps.ask_each_other, 0, 1) == 7
        assert program.do(steps.ask_each_other, 1, 0) == 7
    finally:
        for host in (w0, w1):
            cluster.start_worker(host)


def test_only_one_port_of_a_worker_is_used(cluster: WorkerCluster, program: Program) -> None:
    w0, w1, *_ = cluster.hosts
    program.do(steps.attach, cluster.addresses([w0, w1]), cluster.keys, BRISK)
    program.do(steps.spawn, 2)
    program.do(steps.ask_each_other, 0, 1)
    for host in (w0, w1):
        listening = host.run(["ss", "-Hltn"]).stdout.split()
        assert [word for word in listening if word.endswith(f":{PORT}")], listening
        assert host.run(["ss", "-Hltn"]).stdout.count("LISTEN") == 1
    assert cluster.client.run(["ss", "-Hltn"]).stdout == "", "the client listens nowhere"


def test_client_behind_nat_is_served(worlds: Worlds, tmp_path: Path) -> None:
    world = worlds(["client", "w0", "w1"], behind_nat=["client"])
    with WorkerCluster(world, tmp_path) as behind, behind.program() as program:
        program.do(steps.attach, behind.addresses(), behind.keys, BRISK)
        assert names(program.do(steps.spawn)) == ["w0", "w1"]
        assert program.do(steps.ask_each_other, 0, 1) == 7


def test_a_worker_can_be_reached_at_an_address_it_does_not_know(
    worlds: Worlds, tmp_path: Path
) -> None:
    """Other hosts reach the worker through a gateway that forwards connections."""
    world = worlds(["client", "w0", "proxy"])
    _, w0, proxy = world
    port = str(PORT + 1)
    with (
        WorkerCluster(world, tmp_path) as behind,
        proxy.start_python(FORWARD, w0.address, port),
        behind.program() as program,
    ):
        program.do(steps.attach, [f"tcp://proxy:{port}"], behind.keys, BRISK)
        assert names(program.do(steps.spawn)) == ["w0"]
        assert program.do(steps.echo, b"x" * 5_000_000) == [b"x" * 5_000_000]


def test_worker_serves_one_job_after_another(cluster: WorkerCluster) -> None:
    seen = set()
    for _ in range(3):
        with cluster.program() as program:
            program.do(steps.attach, cluster.addresses(cluster.hosts[:2]), cluster.keys, BRISK)
            seen |= set(program.do(steps.spawn))
            assert program.end() == 0
    assert len(seen) == 6, "nothing of a job is left for the next"


def test_a_program_can_run_one_job_after_another(cluster: WorkerCluster, program: Program) -> None:
    for _ in range(3):
        program.do(steps.attach, cluster.addresses(cluster.hosts[:2]), cluster.keys, BRISK)
        program.do(steps.spawn)
        assert program.do(steps.echo, "x") == ["x", "x"]
        program.do(steps.shut_down)


def test_attach_waits_for_a_worker_that_starts_late(
    cluster: WorkerCluster, program: Program
) -> None:
    w0, w1, *_ = cluster.hosts
    w1.power_cut()
    attaching = program.begin(steps.attach, cluster.addresses([w0, w1]), cluster.keys, BRISK)
    w1.power_on()
    cluster.start_worker(w1)
    assert attaching.result(60) == [2]
    assert names(program.do(steps.spawn)) == ["w0", "w1"]


def test_a_busy_worker_names_its_owner_and_is_free_after_the_owner_is_killed(
    cluster: WorkerCluster,
) -> None:
    w0 = cluster.hosts[:1]
    with cluster.program() as first, cluster.program() as second:
        first.do(steps.attach, cluster.addresses(w0), cluster.keys, {"host_lease_s": 1.0})
        (_, pid), *_ = first.do(steps.spawn)
        brief = {"attach_timeout_s": 0.1}
        why = second.do(steps.why_not_attached, cluster.addresses(w0), cluster.keys, brief)
        assert "HostDied" in why
        assert "it serves a job of" in why
        assert "@client" in why
        first.kill()
        with cluster.program() as third:
            third.do(steps.attach, cluster.addresses(w0), cluster.keys, BRISK)
            assert third.do(steps.spawn)[0][1] != pid


def test_an_interrupted_client_releases_its_workers_immediately(cluster: WorkerCluster) -> None:
    w0 = cluster.hosts[:1]
    with cluster.program() as first, cluster.program() as second:
        # The lease is so long that its expiry cannot free the workers.
        first.do(steps.attach, cluster.addresses(w0), cluster.keys, {"host_lease_s": 600.0})
        first.do(steps.spawn, 2)
        first.process.send_signal(signal.SIGINT)
        first.process.wait(30)
        second.do(steps.attach, cluster.addresses(w0), cluster.keys, BRISK)
        assert names(second.do(steps.spawn)) == ["w0"]


FORWARD = """
import socket, sys, threading

def pump(source, target):
    try:
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    except OSError:
        pass
    for one in (source, target):
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

with socket.create_server(("", int(sys.argv[2]))) as server:
    while True:
        near = server.accept()[0]
        far = socket.create_connection((sys.argv[1], 26600))
        for pair in ((near, far), (far, near)):
            threading.Thread(target=pump, args=pair, daemon=True).start()
"""
