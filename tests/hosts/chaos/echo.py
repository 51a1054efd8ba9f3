"""The simplest workload: each call opens a connection, sends a number and reads it back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.hosts.chaos.workload import CallFailed
from tests.hosts.world import Host, HostProcess, World

PORT = 7001

#: Exceeds the duration of every fault, so that only resets and deaths end calls.
CALL_LIMIT_S = 10.0

#: Records each number before it replies, in a single atomic append.
_SERVER = """
import os, socket, sys, threading

done = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def answer(connection):
    with connection:
        try:
            number = connection.recv(100)
            # A flood of connections sends bytes that are not a request.
            if number.strip().isdigit():
                os.write(done, number)
                connection.sendall(number)
        except OSError:
            pass

with socket.create_server(("", int(sys.argv[2]))) as server:
    print("ready", flush=True)
    while True:
        try:
            connection = server.accept()[0]
        except OSError:
            # There are no descriptors left: there will be.
            threading.Event().wait(0.01)
            continue
        threading.Thread(target=answer, args=(connection,), daemon=True).start()
"""


class EchoWorkload:
    """A server on each host. A host that has lost its server gets a new one."""

    def __init__(self) -> None:
        """Create the workload without starting any server."""
        self._folder = Path()
        self._client: Host | None = None
        self._servers: dict[str, HostProcess] = {}

    @property
    def port(self) -> int:
        """The port on which the servers listen."""
        return PORT

    def start(self, world: World, folder: Path) -> None:
        """Start the servers."""
        self._folder = folder
        self._client, *servers = world.hosts
        for host in servers:
            self.restore(host)

    def call(self, number: int, host: Host) -> None:
        """Send the number and wait until the server returns it.

        Raises:
            CallFailed: The connection failed, or was not established in time.
        """
        assert self._client is not None
        try:
            with self._client.connect(host.address, PORT, CALL_LIMIT_S) as connection:
                connection.sendall(b"%d\n" % number)
                answer = connection.recv(100)
        except (ConnectionError, TimeoutError) as error:
            raise CallFailed(type(error).__name__) from None
        if not answer:
            raise CallFailed("end of connection")
        assert int(answer) == number

    def victims(self, host: Host) -> Sequence[int]:
        """Return the pid of the server."""
        return [self._servers[host.name].pid]

    def restore(self, host: Host) -> None:
        """Start a new server."""
        if old := self._servers.pop(host.name, None):
            old.release()
        server = host.start_python(_SERVER, str(self._folder / host.name), str(PORT))
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        self._servers[host.name] = server

    def executions(self) -> Mapping[int, int]:
        """Count the numbers that the servers recorded."""
        lines = [line for file in self._folder.iterdir() for line in file.read_text().splitlines()]
        return Counter(map(int, lines))

    def declared_dead(self) -> Mapping[str, int]:
        """Return nothing: the client does not declare hosts dead."""
        return {}

    def stop(self) -> None:
        """Stop the servers."""
        for server in self._servers.values():
            server.release()
