"""A client and hosts with workers, in namespaces, and the program on the client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mesh_core import Credentials
from tests.hosts.world import Host, HostProcess, World
from tools.workspace import ROOT

PORT = 26600


class Cluster:
    """Hosts with a worker each, and a client whose program executes commands.

    All connections between them use mutual TLS.
    """

    def __init__(self, hosts: int, program: str = "bench.hosts.program") -> None:
        """Create the hosts and start all programs.

        Args:
            hosts: Number of hosts with workers.
            program: The module that runs on the client.
        """
        self._stack = ExitStack()
        self.folder = Path(self._stack.enter_context(TemporaryDirectory()))
        names = ["client", *(f"w{number}" for number in range(hosts))]
        # The interpreter or the repository may be in a folder that is private to each host.
        shared = [self.folder, ROOT, Path(sys.prefix)]
        self.world = self._stack.enter_context(World(names, shared=shared))
        self.client, *self.hosts = self.world.hosts
        self.credentials = Credentials.create()
        self.credentials.save(self.folder / "client")
        self._workers = [self._worker(host) for host in self.hosts]
        self.program = RemoteProgram(self.client, program, str(self.folder / "client"))

    def _worker(self, host: Host) -> HostProcess:
        folder = self.folder / host.name
        self.credentials.issue(role="worker", name=host.name).save(folder)
        words = ["--listen", f"tcp://*:{PORT}", "--credentials", str(folder)]
        command = [sys.executable, "-m", "mesh_core.worker", *words]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        worker = host.popen(command, stdout=pipe, stderr=nowhere, cwd=ROOT)
        assert worker.stdout is not None
        if not worker.stdout.readline():
            raise RuntimeError(f"the worker on {host.name} did not come up")
        return worker

    def attach(self, hosts: Sequence[Host]) -> None:
        """Make the program attach workers."""
        self.program.do("attach", [f"tcp://{host.name}:{PORT}" for host in hosts])

    def close(self) -> None:
        """Stop everything."""
        self._stack.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemoteProgram:
    """A module that runs on a host and replies to each line of JSON with another."""

    def __init__(self, host: Host, module: str, *words: str) -> None:
        """Start the module."""
        command = [sys.executable, "-m", module, *words]
        pipe = subprocess.PIPE
        self._process = host.popen(command, stdin=pipe, stdout=pipe, cwd=ROOT)

    def send(self, what: str, *arguments: Any) -> None:
        """Send a command without waiting for its reply."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, *arguments]) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        """Wait for the next reply.

        Raises:
            RuntimeError: The program has exited.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the program on the host has ended")
        return json.loads(line)

    def do(self, what: str, *arguments: Any) -> Any:
        """Send a command and wait for the reply."""
        self.send(what, *arguments)
        return self.receive()
