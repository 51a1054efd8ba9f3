"""A client that reaches only one worker attaches the others through it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mesh_core import Credentials
from tests.hosts.conftest import Worlds
from tests.hosts.world import Host, HostProcess, World

PORT = 26600
END_LIMIT_S = 30.0

PRELUDE = f"""
import os, socket, sys, time
from mesh_core import *

keys, *hosts = sys.argv[1:]
credentials = Credentials.load(keys)
gateway = "tcp://login:{PORT}"
workers = [f"tcp://{{host}}:{PORT}" for host in hosts]

class Member(Actor):
    @endpoint
    def where(self) -> str:
        return socket.gethostname()

    @endpoint
    def echo(self, value):
        return value

    @endpoint
    def weigh(self, value):
        return len(value)

    @endpoint
    def ask(self, other, value):
        return other.echo.call_one(value).get()

    @endpoint
    def never(self):
        time.sleep(600)

def attached(**options):
    procs = attach_to_workers(workers, credentials=credentials, **options).spawn_procs()
    return procs.spawn("member", Member)
"""


class GatewayCluster:
    """A client, a worker that it reaches, and two workers behind that worker."""

    def __init__(self, world: World, folder: Path) -> None:
        """Start the workers, and remove the routes from the client to two of them."""
        self.world, self.folder = world, folder
        self.client, self.login, *self.inner = world.hosts
        credentials = Credentials.create()
        credentials.save(folder / "client")
        self.workers: dict[str, HostProcess] = {}
        for host in (self.login, *self.inner):
            credentials.issue(role="worker", name=host.name).save(folder / host.name)
            self.workers[host.name] = self._worker(host)
        for host in self.inner:
            world.faults.drop(self.client, host)

    def _worker(self, host: Host) -> HostProcess:
        words = ["--listen", f"tcp://*:{PORT}", "--credentials", str(self.folder / host.name)]
        worker = host.popen(
            [sys.executable, "-m", "mesh_core.worker", *words], stdout=subprocess.PIPE
        )
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith("mesh worker serves")
        return worker

    def run(self, code: str, *hosts: str) -> list[str]:
        """Run a program on the client that attaches these hosts; return the lines of its output."""
        printed = self.client.python(PRELUDE + code, str(self.folder / "client"), *hosts)
        return printed.splitlines()

    def close(self) -> None:
        """Stop the workers in an orderly way."""
        for worker in self.workers.values():
            worker.terminate()
        for worker in self.workers.values():
            assert worker.wait(END_LIMIT_S) == 0


@pytest.fixture
def gateway_cluster(worlds: Worlds, tmp_path: Path) -> Iterator[GatewayCluster]:
    """A client that accepts no connections and that reaches only the worker `login`."""
    with ExitStack() as stack:
        world = worlds(["client", "login", "w0", "w1"], behind_nat=["client"])
        gateway_cluster = GatewayCluster(world, tmp_path)
        stack.callback(gateway_cluster.close)
        yield gateway_cluster


def test_workers_behind_a_gateway_work_like_other_hosts(gateway_cluster: GatewayCluster) -> None:
    code = """
members = attached(gateway=gateway)
print(*members.where.call().get(timeout=30).values())
first, second = members.slice(hosts=0), members.slice(hosts=2)
print(first.ask.call_one(second, 7).get(timeout=30), second.ask.call_one(first, 8).get(timeout=30))
payload = os.urandom(20 << 20)
print([echo == payload for echo in members.echo.call(payload).get(timeout=60).values()])
"""
    assert gateway_cluster.run(code, "login", "w0", "w1") == [
        "login w0 w1",
        "7 8",
        "[True, True, True]",
    ]


def test_a_gateway_need_not_be_a_host_of_the_job(gateway_cluster: GatewayCluster) -> None:
    code = """
from mesh_core.compat import attach
attach(gateway)
print(*attached().where.call().get(timeout=30).values())
"""
    # Two programs in sequence: the workers are free immediately, not when a lease expires.
    for _ in range(2):
        assert gateway_cluster.run(code, "w0", "w1") == ["w0 w1"]


def test_workers_behind_a_gateway_are_unreachable_without_it(
    gateway_cluster: GatewayCluster,
) -> None:
    code = """
configure(attach_timeout_s=0.1)
try:
    attached().where.call().get(timeout=30)
except HostDied as error:
    print(error)
"""
    (said,) = [line for line in gateway_cluster.run(code, "w0") if "reached" in line]
    assert "tcp://w0:26600 cannot be reached" in said


def test_the_gateway_reports_why_it_cannot_reach_a_host(gateway_cluster: GatewayCluster) -> None:
    code = """
configure(attach_timeout_s=0.1)
for host in ("no-such-host", "login:1"):
    try:
        attach_to_workers([host], credentials=credentials, gateway=gateway).initialized.get()
    except HostDied as error:
        print(str(error).replace("\\n", " "))
"""
    unknown, refused = [line for line in gateway_cluster.run(code) if "from the gateway" in line]
    assert "no-such-host:26600 cannot be resolved here: correct the name" in unknown
    assert "connection refused: start the worker" in refused


def test_a_connection_of_an_unauthenticated_peer_is_not_forwarded(
    gateway_cluster: GatewayCluster,
) -> None:
    code = """
configure(attach_timeout_s=0.1)
credentials = Credentials.create()
try:
    attach_to_workers(workers, credentials=credentials, gateway=gateway).initialized.get()
except HostDied as error:
    print("gateway login:26600 cannot be reached" in str(error), "job" in str(error))
"""
    assert "True True" in gateway_cluster.run(code, "w0")


def test_links_through_a_gateway_survive_a_connection_reset(
    gateway_cluster: GatewayCluster,
) -> None:
    script = """
members = attached(gateway=gateway)
members.echo.call(0).get(timeout=30)
print("ready", flush=True)
sent = 0
while not os.path.exists(os.path.join(os.path.dirname(keys), "broken")) or sent % 100:
    assert members.echo.call(sent).get(timeout=30).values() == [sent, sent]
    sent += 1
for sent in range(100):
    assert members.echo.call(sent).get(timeout=30).values() == [sent, sent]
print("whole")
"""
    keys = str(gateway_cluster.folder / "client")
    program = gateway_cluster.client.start_python(PRELUDE + script, keys, "w0", "w1")
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    gateway_cluster.world.faults.reset_once(gateway_cluster.client, gateway_cluster.login)
    (gateway_cluster.folder / "broken").touch()
    assert program.stdout.readline() == "whole\n"
    assert program.wait(END_LIMIT_S) == 0


@pytest.mark.parametrize("hosts", [("w0", "w1", "login", "w2"), ("w0", "w1", "w2")])
def test_a_large_message_to_all_hosts_crosses_each_link_once(
    worlds: Worlds, tmp_path: Path, hosts: tuple[str, ...]
) -> None:
    script = """
members = attached(gateway=gateway)
members.weigh.call(b"").get(timeout=30)
print("ready", flush=True)
while not os.path.exists(os.path.join(os.path.dirname(keys), "begin")):
    time.sleep(0.01)
print(members.weigh.call(os.urandom(10 << 20)).get(timeout=60).values(), flush=True)
"""
    with ExitStack() as stack:
        world = worlds(["client", "login", "w0", "w1", "w2"], behind_nat=["client"])
        gateway_cluster = GatewayCluster(world, tmp_path)
        stack.callback(gateway_cluster.close)
        keys = str(gateway_cluster.folder / "client")
        program = gateway_cluster.client.start_python(PRELUDE + script, keys, *hosts)
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        before = {host.name: host.traffic() for host in world}
        (gateway_cluster.folder / "begin").touch()
        assert program.stdout.readline() == f"{[10 << 20] * len(hosts)}\n"
        used = {host.name: host.traffic() - before[host.name] for host in world}
        assert program.wait(END_LIMIT_S) == 0
    # TCP retransmits some segments on a busy machine; a second copy would double the traffic.
    limit = 1.5 * (10 << 20)
    assert used["client"].bytes_out < limit
    # Data for the gateway itself does not pass through it a second time.
    assert all(one.bytes_in < limit and one.bytes_out < limit for one in used.values()), used


def test_the_death_of_a_host_behind_the_gateway_is_noticed(gateway_cluster: GatewayCluster) -> None:
    script = """
members = attached(gateway=gateway)
waiting = members.slice(hosts=1).never.call_one()
members.slice(hosts=0).echo.call_one(0).get(timeout=30)
print("ready", flush=True)
start = time.monotonic()
try:
    waiting.get(timeout=30)
except HostDied:
    value = members.slice(hosts=0).echo.call_one(3).get(timeout=30)
    print(time.monotonic() - start < 10, value, flush=True)
    os._exit(0)
"""
    keys = str(gateway_cluster.folder / "client")
    program = gateway_cluster.client.start_python(PRELUDE + script, keys, "w0", "w1")
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    gateway_cluster.world.faults.power_cut(gateway_cluster.inner[1])
    gateway_cluster.workers.pop("w1")
    assert program.stdout.readline() == "True 3\n"
    program.wait(END_LIMIT_S)
