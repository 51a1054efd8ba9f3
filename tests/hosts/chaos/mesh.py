"""The workload of Mesh: a program calls actors in four processes on each host.

Mesh replaces processes that are killed. If a host is dead because its power was cut or because it
was silent for too long, the program attaches it again when its worker is back.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.hosts.chaos import service
from tests.hosts.chaos.workload import CallFailed
from tests.hosts.cluster import Program, WorkerCluster
from tests.hosts.cluster.cluster import PORT, inner_pid
from tests.hosts.world import Host, World

#: Time limit for the replacement of a killed process.
REPLACED_LIMIT_S = 20.0


class MeshWorkload:
    """A program on the first host and a worker on each of the other hosts."""

    def __init__(self) -> None:
        """Create the workload without starting any process."""
        self._folder = Path()
        self._cluster: WorkerCluster | None = None
        self._program: Program | None = None

    @property
    def port(self) -> int:
        """The port on which the workers listen."""
        return PORT

    def start(self, world: World, folder: Path) -> None:
        """Start the workers and the program, which opens the service."""
        self._folder = folder
        for name in ("keys", "done", "pids"):
            (folder / name).mkdir()
        self._cluster = WorkerCluster(world, folder / "keys")
        self._program = Program(self._cluster.client)
        self._program.do(
            service.open_service, self._cluster.addresses(), self._cluster.keys, str(folder)
        )

    def call(self, number: int, host: Host) -> None:
        """Make the program call one of the processes of a host.

        Raises:
            CallFailed: The program received an error; the message is the type of that error.
        """
        assert self._cluster is not None
        assert self._program is not None
        (address,) = self._cluster.addresses([host])
        if error := self._program.do(service.note, number, address):
            raise CallFailed(error)

    def victims(self, host: Host) -> Sequence[int]:
        """Return the processes with actors; if all have just been killed, wait for one."""
        until = time.monotonic() + REPLACED_LIMIT_S
        while time.monotonic() < until:
            names = {path.suffix for path in (self._folder / "pids").glob(f"{host.name}.*")}
            found = [pid for pid in host.pids() if f".{inner_pid(pid)}" in names]
            if found:
                return found
            time.sleep(0.05)
        return []

    def restore(self, host: Host) -> None:
        """Start the worker of a host that was without power; the program attaches it again."""
        assert self._cluster is not None
        if not self._cluster.worker(host).is_alive:
            for old in (self._folder / "pids").glob(f"{host.name}.*"):
                old.unlink()
            self._cluster.start_worker(host)

    def executions(self) -> Mapping[int, int]:
        """Count the numbers that the actors recorded."""
        files = (self._folder / "done").iterdir()
        return Counter(int(line) for file in files for line in file.read_text().splitlines())

    def declared_dead(self) -> Mapping[str, int]:
        """Count the hosts that the program found dead."""
        assert self._cluster is not None
        deaths = self._folder / "deaths"
        lines = deaths.read_text().splitlines() if deaths.exists() else []
        print("\n".join(["", *lines]))
        times = Counter(line.partition(" ")[0] for line in lines)
        hosts = self._cluster.hosts
        return {
            host.name: times[address]
            for host, address in zip(hosts, self._cluster.addresses(hosts), strict=True)
        }

    def stop(self) -> None:
        """Stop the program and the workers."""
        if self._program is not None:
            with self._program:
                pass
        if self._cluster is not None:
            self._cluster.close()
