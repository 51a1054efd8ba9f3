"""Attacks over a network on each line of the threat model in SECURITY.md about the network.

A program continuously uses the worker of one host, and another worker is free. Each attack targets
both. After it the program continues, the free worker accepts a job, neither worker has grown, and
no data from the attacker was unpickled.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mesh_core import Credentials, CredentialsError
from tests.hosts.cluster import Program, WorkerCluster, steps
from tests.hosts.cluster.attacker import (
    ATTACH,
    ATTACHED,
    CALL,
    HELLO,
    PATIENCE_S,
    PING,
    WELCOME,
    Connection,
    Proc,
    bomb,
    frame,
    head,
    hello,
    old_tls,
    tls,
)
from tests.hosts.cluster.attacks import ASK_WITHOUT_PROOF, FLOOD, JOIN, RECORD
from tests.hosts.cluster.cluster import PORT
from tests.hosts.world import Host, World
from tools.workspace import ROOT

#: Allowed growth of a worker under attack; it holds at most 1,024 unauthenticated peers at a time.
GROWTH_MAX_BYTES = 48 << 20

#: Time within which a peer must authenticate, and slack for a busy machine.
AUTHENTICATION_MAX_S = 10.0
SLACK_S = 3.0

_pause = threading.Event()
_ports = itertools.count(PORT + 2)


@dataclass(frozen=True)
class AttackedCluster:
    """A cluster under attack, and the host of the attacker."""

    cluster: WorkerCluster
    program: Program
    attacker: Host
    marker: Path
    """Created by any process that unpickles the bomb."""

    @property
    def targets(self) -> list[str]:
        """The addresses of the worker that serves the program and of the free worker."""
        return [host.address for host in self.cluster.hosts]

    @property
    def bomb(self) -> bytes:
        """A pickle that creates the marker file."""
        return bomb(self.marker)

    def member(self) -> Path:
        """The credentials of a worker of the job, as held by an attacker who compromised it."""
        folder = self.cluster.folder / "taken"
        if not folder.exists():
            self.cluster.credentials.issue(role="worker", name="taken").save(folder)
        return folder

    def attach_request(self, job: bytes = bytes(16)) -> bytes:
        """Return a request to serve a job, with a pickle in a field that might be unpickled."""
        facts: dict[str, Any] = {"version": 1, "job": job.hex(), "token": bytes(32).hex()}
        facts |= {"host": 7, "owner": "mallory", "lease_s": 600.0, "path": [], "config": {}}
        return frame(ATTACH, json.dumps(facts).encode())

    def pids(self) -> list[int]:
        """Return the pids of the processes that accept connections."""
        return [self.cluster.worker(host).session() for host in self.cluster.hosts]

    def check(self) -> None:
        """Check that both workers serve normally."""
        assert self.program.do(steps.echo, "x") == ["x"]
        worker = self.cluster.worker(self.cluster.hosts[1])
        session = worker.session()
        with self.cluster.program() as other:
            free = self.cluster.addresses(self.cluster.hosts[1:])
            other.do(steps.attach, free, self.cluster.keys, {})
            assert other.do(steps.spawn)[0][0] == self.cluster.hosts[1].name
            assert other.do(steps.echo, "x") == ["x"]
        worker.wait_for_session_after(session)
        assert not self.marker.exists(), "something was unpickled"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedCluster]:
    folder = tmp_path_factory.mktemp("attacked")
    with ExitStack() as stack:
        world = stack.enter_context(World(["client", "w0", "w1", "attacker"], shared=[folder]))
        cluster = stack.enter_context(WorkerCluster(world, folder, world.hosts[1:3]))
        program = stack.enter_context(cluster.program())
        program.do(steps.attach, cluster.addresses(cluster.hosts[:1]), cluster.keys, {})
        program.do(steps.spawn)
        yield AttackedCluster(cluster, program, world["attacker"], folder / "unpickled")


@pytest.fixture
def monitored(attacked: AttackedCluster) -> Iterator[AttackedCluster]:
    before = [rss_bytes(pid) for pid in attacked.pids()]
    yield attacked
    grown = [rss_bytes(pid) - old for pid, old in zip(attacked.pids(), before, strict=True)]
    assert max(grown) < GROWTH_MAX_BYTES, grown
    attacked.check()


def rss_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


# Attacks by peers that are not members of the job.


@pytest.mark.parametrize("where", ["*", "0.0.0.0", "[::]", "w0", "IPv4", "IPv6"])
def test_listening_off_loopback_needs_credentials(attacked: AttackedCluster, where: str) -> None:
    w0 = attacked.cluster.hosts[0]
    host = {"IPv4": w0.address, "IPv6": f"[{w0.address6}]"}.get(where, where)
    command = [sys.executable, "-m", "mesh_core.worker", "--listen", f"tcp://{host}:0"]
    ended = w0.run(command, check=False)
    assert ended.returncode == 2
    assert "without credentials" in ended.stderr
    assert "serves" not in ended.stdout


def test_worker_on_loopback_is_not_on_the_network(attacked: AttackedCluster) -> None:
    w0 = attacked.cluster.hosts[0]
    command = [sys.executable, "-m", "mesh_core.worker", "--listen", "tcp://127.0.0.1:26700"]
    with w0.popen(command, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert "serves" in worker.stdout.readline()
        for address in (w0.address, w0.address6):
            with pytest.raises(ConnectionRefusedError):
                attacked.attacker.connect(address, 26700)


def test_loopback_without_credentials_is_refused(monitored: AttackedCluster) -> None:
    for host in monitored.cluster.hosts:
        for address in ("127.0.0.1", "::1"):
            with Connection(host, address, PORT) as connection:
                connection.send(monitored.attach_request())
                assert connection.is_ended()


def test_a_worker_without_credentials_serves_programs_of_its_user(
    attacked: AttackedCluster,
) -> None:
    w0 = attacked.cluster.hosts[0]
    command = [sys.executable, "-m", "mesh_core.worker", "--listen", "tcp://127.0.0.1:26701"]
    with w0.popen(command, stdout=subprocess.PIPE, cwd=ROOT) as worker:
        assert worker.stdout is not None
        assert "serves" in worker.stdout.readline()
        assert w0.python(JOIN) == "joined\n"
        assert w0.python(ASK_WITHOUT_PROOF) == "nothing\n"
        worker.terminate()
        worker.wait(30)


def test_scans_and_garbage_are_refused_at_once(monitored: AttackedCluster) -> None:
    garbage = [
        b"",
        b"GET / HTTP/1.1\r\nHost: w0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        monitored.bomb,
        monitored.attach_request(),
        frame(PING, b""),
        frame(HELLO, monitored.bomb),
        os.urandom(4096),
        # Invalid TLS records: malformed, oversized, or of a type that must not come first.
        b"\x16\x03\x01\x00\x05hello",
        b"\x16\x03\x01\xff\xff" + os.urandom(65535),
        b"\x17\x03\x03\x00\x10" + os.urandom(16),
        b"\x15\x03\x03\x00\x02\x02\x00",
    ]
    for address in monitored.targets:
        for data in garbage:
            with Connection(monitored.attacker, address, PORT) as connection:
                connection.send(data)
                connection.stop_sending()
                assert connection.is_ended()


@pytest.mark.parametrize("who", ["nobody", "another job", "old TLS"])
def test_invalid_certificates_are_refused(
    monitored: AttackedCluster, tmp_path: Path, who: str
) -> None:
    Credentials.create(job=monitored.cluster.credentials.job, name="w0").save(tmp_path / "forged")
    context = {
        "nobody": tls(None),
        # Signed by an authority that claims to be the authority of the job.
        "another job": tls(tmp_path / "forged"),
        "old TLS": old_tls(),
    }[who]
    for address in monitored.targets:
        assert is_refused(monitored, address, context)


def is_refused(monitored: AttackedCluster, address: str, context: Any) -> bool:
    """Return whether a TLS peer's request gets no reply."""
    try:
        with Connection(monitored.attacker, address, PORT, context) as connection:
            connection.send(monitored.attach_request())
            return connection.frame()[0] == 0
    except OSError:
        return True


def test_a_client_of_another_job_is_refused_with_the_name_of_the_job(
    monitored: AttackedCluster, tmp_path: Path
) -> None:
    Credentials.create().save(tmp_path / "other")
    with Program(monitored.attacker) as attacker:
        why = attacker.do(
            steps.why_not_attached,
            monitored.cluster.addresses(),
            str(tmp_path_in(monitored, tmp_path / "other")),
            {"attach_timeout_s": 0.1},
        )
    assert "HostDied" in why
    assert monitored.cluster.credentials.job in why


def tmp_path_in(monitored: AttackedCluster, folder: Path) -> Path:
    """Copy credentials to a folder that the hosts share, and return it."""
    copy = monitored.cluster.folder / "others"
    Credentials.load(folder).save(copy)
    return copy


def test_a_replayed_connection_is_refused(monitored: AttackedCluster) -> None:
    """Replay everything that a client sent to a worker, byte for byte, to both workers."""
    record = monitored.cluster.folder / "record"
    port = PORT + 1
    with monitored.attacker.start_python(
        RECORD, monitored.targets[1], str(port), str(record)
    ) as tap:
        assert tap.stdout is not None
        assert tap.stdout.readline() == "ready\n"
        with monitored.cluster.program() as victim:
            address = f"tcp://{monitored.attacker.name}:{port}"
            victim.do(steps.attach, [address], monitored.cluster.keys, {})
            victim.do(steps.spawn)
    said = [path.read_bytes() for path in sorted(monitored.cluster.folder.glob("record*"))]
    assert len(said) >= 2, "one connection asks the worker, another is the link"
    assert all(len(one) > 500 for one in said)
    for address in monitored.targets:
        for one in said:
            with Connection(monitored.attacker, address, PORT) as connection:
                connection.send(one)
                assert connection.is_ended()


def test_slow_handshakes_are_dropped(monitored: AttackedCluster) -> None:
    """Sending a byte from time to time does not keep a connection open."""
    began = time.monotonic()
    with ExitStack() as stack:
        connections = [
            stack.enter_context(Connection(monitored.attacker, address, PORT))
            for address in monitored.targets
            for _ in range(20)
        ]
        start = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(400)
        left = list(connections)
        for at in range(len(start)):
            for connection in left:
                connection.send(start[at : at + 1])
            left = [connection for connection in left if not has_ended(connection)]
            if not left:
                break
            assert time.monotonic() - began < AUTHENTICATION_MAX_S + SLACK_S
            # A program can still attach.
            if at == 1:
                monitored.check()
            _pause.wait(0.25)
    assert time.monotonic() - began > AUTHENTICATION_MAX_S / 2, "they were given some time"


def has_ended(connection: Connection) -> bool:
    try:
        return connection.receive(0.001) == b""
    except TimeoutError:
        return False


def test_ten_thousand_half_open_connections(monitored: AttackedCluster) -> None:
    for address in monitored.targets:
        with monitored.attacker.start_python(FLOOD, address, str(PORT), "10000") as flood:
            assert flood.stdout is not None
            assert flood.stdout.readline() == "10000 open\n"
            monitored.check()
            grown = rss_bytes(monitored.pids()[monitored.targets.index(address)])
            assert grown < 200 << 20


# An attacker with credentials of a member must not be trusted in everything.


def test_worker_cannot_pose_as_the_controller(monitored: AttackedCluster) -> None:
    for address in monitored.targets:
        with Connection(monitored.attacker, address, PORT, tls(monitored.member())) as connection:
            connection.send(monitored.attach_request())
            kind, why = connection.frame()
            assert kind == ATTACHED
            assert b"refused" in why or b"only the job's controller" in why or b"serves" in why
        # It claims to be host 0.
        with Connection(monitored.attacker, address, PORT, tls(monitored.member())) as connection:
            connection.send(hello(Proc(0), Proc(1), bytes(16), bytes(32)))
            assert connection.is_ended()


def test_oversize_and_truncated_frames(monitored: AttackedCluster) -> None:
    """The worker reads no more from a member than the first frame of a connection may contain."""
    whole = monitored.attach_request()
    frames = {
        "too long": head(ATTACH, (16 << 10) + 1),
        "far too long": head(ATTACH, 0xFFFF_FFFF),
        "another kind": frame(CALL, monitored.bomb),
        "no kind": head(99, 0),
        "no magic": head(ATTACH, 0, magic=0x80),
        "another version": head(ATTACH, 0, version=9),
        "longer inside than outside": head(ATTACH, 10, meta_len=11),
        "no request": frame(ATTACH, monitored.bomb),
        "no JSON": frame(ATTACH, b"[" * 16_000),
        "cut in the head": whole[:40],
        "cut in the tail": whole[:-1],
    }
    for address in monitored.targets:
        for data in frames.values():
            with Connection(
                monitored.attacker, address, PORT, tls(monitored.member())
            ) as connection:
                connection.send(data)
                if data in (whole[:40], whole[:-1]):
                    continue  # The worker closes the connection.
                assert connection.is_ended()


def test_frames_of_another_job(monitored: AttackedCluster) -> None:
    """A member sends a HELLO whose job or token differs from the job that the worker serves."""
    with taken_over(monitored) as taken:
        job, token = taken.job, taken.token
        me, to = Proc(taken.host), Proc(1)
        wrong = [
            hello(me, to, os.urandom(16), token),
            hello(me, to, job, os.urandom(32)),
            hello(Proc(0), to, job, token),
            hello(Proc(1), to, job, token),
            hello(Proc(taken.host, 1), to, job, token),
            hello(me, Proc(9), job, token),
        ]
        for data in wrong:
            with Connection(
                monitored.attacker, monitored.targets[0], PORT, tls(monitored.member())
            ) as connection:
                connection.send(data)
                assert connection.is_ended()
        # Nothing else was wrong with the frames above.
        with Connection(
            monitored.attacker, monitored.targets[0], PORT, tls(monitored.member())
        ) as connection:
            connection.send(hello(me, to, job, token))
            assert connection.frame()[0] == WELCOME
            # An accepted connection is closed, too, when it violates the protocol.
            connection.send(head(CALL, 0xFFFF_FFFF, to=to.number, sender=me.number, seq=1))
            assert connection.is_ended()


def test_frames_of_a_stale_generation(monitored: AttackedCluster) -> None:
    """After a HELLO of the next incarnation of a process, the previous one is rejected."""
    with taken_over(monitored) as taken:
        me, to = Proc(taken.host), Proc(1)
        for incarnation, expected in ((1, WELCOME), (0, 0), (2, WELCOME), (1, 0), (2, WELCOME)):
            with Connection(
                monitored.attacker, monitored.targets[0], PORT, tls(monitored.member())
            ) as connection:
                connection.send(hello(me, to, taken.job, taken.token, incarnation))
                assert connection.frame()[0] == expected, f"incarnation {incarnation}"
                connection.send(frame(CALL, monitored.bomb, to=to.number, sender=me.number))


@dataclass(frozen=True)
class Taken:
    """The data about a job that a compromised worker knows."""

    job: bytes
    token: bytes
    host: int


@contextmanager
def taken_over(monitored: AttackedCluster) -> Iterator[Taken]:
    """Make the program attach a worker to its job that the attacker controls."""
    # The program still tries to attach the workers of earlier tests.
    port = next(_ports)
    with monitored.attacker.listen(port) as listener:
        address = f"tcp://{monitored.attacker.name}:{port}"
        monitored.program.do(steps.ask_to_join, [address], monitored.cluster.keys)
        listener.settimeout(PATIENCE_S)
        context = tls(monitored.member(), is_server=True)
        with Connection.of(context.wrap_socket(listener.accept()[0], server_side=True)) as client:
            kind, order = client.frame()
            assert kind == ATTACH
            client.send(frame(ATTACHED, b"taken"))
        facts = json.loads(order)
        job, token = bytes.fromhex(facts["job"]), bytes.fromhex(facts["token"])
        yield Taken(job, token, facts["host"])


@pytest.mark.hosts(["client", "w0"])
def test_credentials_that_were_replaced_are_refused(world: World, tmp_path: Path) -> None:
    _, w0 = world
    with WorkerCluster(world, tmp_path) as cluster:
        new = cluster.credentials.rotate().forget_previous()
        new.save(tmp_path / "new")
        new.issue(role="worker", name="w0").save(tmp_path / "w0")
        cluster.start_worker(w0)
        with cluster.program() as old:
            brief = {"attach_timeout_s": 0.1}
            why = old.do(steps.why_not_attached, cluster.addresses(), cluster.keys, brief)
            assert "HostDied" in why
        with cluster.program() as program:
            program.do(steps.attach, cluster.addresses(), str(tmp_path / "new"), {})
            assert program.do(steps.spawn)[0][0] == "w0"


#: Created at collection: the certificates expire after a minute, during which other tests run.
EXPIRING = Credentials.create(valid_for=60)
NEXT = EXPIRING.rotate(valid_for=3600)


@pytest.mark.last
@pytest.mark.timeout(150)
@pytest.mark.hosts(["client", "w0"])
def test_expired_certificates_are_refused(world: World, tmp_path: Path) -> None:
    """The expired authority is still trusted, and the worker has its successor."""
    EXPIRING.save(tmp_path / "expired")
    cluster = WorkerCluster(world, tmp_path, credentials=NEXT)
    with cluster, cluster.program() as program:
        _pause.wait(max(EXPIRING.expires_at.timestamp() + 1 - time.time(), 0))
        with pytest.raises(CredentialsError, match="expired"):
            program.do(steps.attach, cluster.addresses(), str(tmp_path / "expired"), {})
        with (
            suppress(OSError),
            Connection(
                cluster.client, cluster.hosts[0].address, PORT, tls(tmp_path / "expired")
            ) as connection,
        ):
            connection.send(frame(ATTACH, b"{}"))
            assert connection.frame()[0] == 0
        program.do(steps.attach, cluster.addresses(), cluster.keys, {})
        assert program.do(steps.spawn)[0][0] == "w0"
