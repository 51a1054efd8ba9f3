"""Drives torchrun, which runs a script on all ranks: it supports no calls, only a start and an end.

The script does not import PyTorch, so the figures are for torchrun alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from bench.drivers.driver import Driver, NotOfferedError, Pending, TwoHosts

_SCRIPT = Path(__file__).with_name("torchrun_rank.py")
_LOOPBACK = "127.0.0.1"
_PORT = 29400
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class ChildFailedError(Exception):
    """The output of torchrun when a rank has failed."""


class _Run:
    """A running torchrun; its end is the reply of every rank."""

    def __init__(self, options: list[str], address: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._listener = socket.create_server((address, 0))
        port = str(self.port)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *options, str(_SCRIPT), address, port],
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            preexec_fn=_end_with_parent,
        )
        self._ranks: dict[int, tuple[int, IO[str]]] = {}

    @property
    def port(self) -> int:
        """The port to which the ranks connect."""
        port: int = self._listener.getsockname()[1]
        return port

    def await_ranks(self, count: int) -> None:
        for _ in range(count):
            connection = self._listener.accept()[0].makefile("rw")
            rank = json.loads(connection.readline())
            self._ranks[rank["rank"]] = rank["pid"], connection

    def pids(self) -> list[int]:
        return [self._ranks[rank][0] for rank in sorted(self._ranks)]

    def tell(self, rank: int, command: str) -> None:
        connection = self._ranks[rank][1]
        connection.write(f"{command}\n")
        connection.flush()

    def get(self, timeout: float | None = None) -> Any:
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            why = f"torchrun has no deadline, and the script still runs after {timeout:g} s"
            raise NotOfferedError(why) from None
        self._errors.seek(0)
        _, is_named, cause = self._errors.read().rpartition("Root Cause (first observed failure):")
        raise ChildFailedError(cause if is_named else f"torchrun ended with status {status}")


class TorchrunDriver(Driver):
    """One rank in each worker process."""

    name = "torchrun"
    kills_per_mesh = 1

    def start(self, workers: int, kind: str = "blocking") -> None:
        self._run = _Run(["--standalone", f"--nproc-per-node={workers}"], _LOOPBACK)
        self._run.await_ranks(workers)
        self._ranks = list(range(workers))

    def serve(self, hosts: TwoHosts) -> None:
        script = [str(_SCRIPT), hosts.program, hosts.awaited("port").read_text()]
        command = ["-m", "torch.distributed.run", *_options_of_node(1, hosts), *script]
        os.execv(sys.executable, [sys.executable, *command])

    def start_across(self, hosts: TwoHosts) -> None:
        self._run = _Run(_options_of_node(0, hosts), hosts.program)
        unfinished = hosts.folder / "unfinished"
        unfinished.write_text(str(self._run.port))
        unfinished.rename(hosts.folder / "port")
        self._run.await_ranks(2)
        # The first rank runs on the host of the program, which stores the state that ranks share.
        self._ranks = [1]

    def stop(self) -> None:
        for rank in self._ranks:
            self._run.tell(rank, "end")

    def stop_after_kills(self) -> None:
        """Do nothing: torchrun has ended with the first rank."""

    def pids(self) -> list[int]:
        return self._run.pids()

    def hang(self, rank: int, path: str) -> Pending:
        self._run.tell(self._ranks[rank], f"hang {path}")
        return self._run

    def fill_memory(self, rank: int) -> Pending:
        self._run.tell(self._ranks[rank], "fill_memory")
        return self._run


def _options_of_node(number: int, hosts: TwoHosts) -> list[str]:
    place = ["--nnodes=2", f"--node-rank={number}", "--nproc-per-node=1"]
    return [*place, f"--master-addr={hosts.program}", f"--master-port={_PORT}"]


def _end_with_parent() -> None:
    """Let the kernel kill torchrun with the driver: torchrun is the program of its ranks."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def driver() -> Driver:
    """Return the driver of torchrun."""
    return TorchrunDriver()
