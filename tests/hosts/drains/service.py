"""The program: actors on each host, and calls and moves on request."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path
from typing import Any

from mesh_core import Actor, Credentials, MeshError, attach_to_workers, configure, endpoint

#: Processes on each host.
PROCS = 2


class Recorder(Actor):
    """Records each number before it replies, and counts the numbers in its state."""

    def __init__(self, folder: Path, state_bytes: int) -> None:
        """Create the record of one rank, and a state of this size in addition."""
        self._folder = folder
        self._state = bytearray(os.urandom(1 << 20) * (state_bytes >> 20))
        self._checksum = zlib.crc32(self._state)
        self._count = 0
        self._name = ""
        self._done = -1

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_done": -1}

    @endpoint
    def name(self, name: str) -> None:
        """Set the name of the file in which this rank records."""
        self._name = name

    @endpoint
    def has_state(self) -> bool:
        """Return whether the state is still the initial state of the actor."""
        return zlib.crc32(self._state) == self._checksum

    @endpoint
    def note(self, number: int) -> int:
        """Execute a call, and return how many this actor has executed."""
        if self._done < 0:
            options = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._done = os.open(self._folder / "done" / self._name, options, 0o600)
        os.write(self._done, b"%d\n" % number)
        self._count += 1
        return self._count


class _Service:
    def __init__(
        self, addresses: list[str], credentials: str, folder: Path, spare: str, state_bytes: int
    ) -> None:
        self.hosts = attach_to_workers(addresses, credentials=Credentials.load(credentials))
        self.addresses = list(addresses)
        self.spare = spare
        procs = self.hosts.spawn_procs({"procs": PROCS})
        self.recorders = procs.spawn("recorder", Recorder, folder, state_bytes)
        for rank in range(len(addresses) * PROCS):
            self._rank(rank).name.call_one(f"rank-{rank}").get()

    def _rank(self, rank: int) -> Any:
        return self.recorders.slice(hosts=rank // PROCS, procs=rank % PROCS)

    def note(self, number: int, host: int) -> str | None:
        rank = host * PROCS + number % PROCS
        try:
            self._rank(rank).note.call_one(number).get()
        except MeshError as error:
            return f"{type(error).__name__}: {error}"
        return None

    def drain(self, host: int) -> float:
        began = time.monotonic()
        self.hosts.drain(host, self.spare)
        self.spare, self.addresses[host] = self.addresses[host], self.spare
        return time.monotonic() - began

    def counts(self) -> list[int]:
        """Return how many calls each actor has executed, by its state."""
        ranks = range(len(self.addresses) * PROCS)
        return [self._rank(rank).note.call_one(0).get() - 1 for rank in ranks]

    def have_state(self) -> bool:
        return all(self.recorders.has_state.call().get().values())


_service: _Service | None = None


def open_service(
    addresses: list[str], credentials: str, folder: str, spare: str, state_bytes: int
) -> None:
    """Start the actors on all hosts."""
    global _service
    configure(attach_timeout_s=30.0)
    _service = _Service(addresses, credentials, Path(folder), spare, state_bytes)


def note(number: int, host: int) -> str | None:
    """Make a call to an actor of a host; return the error with which it ended, or None."""
    assert _service is not None
    return _service.note(number, host)


def drain(host: int) -> float:
    """Move a host to the spare worker, and return how long this took, in seconds."""
    assert _service is not None
    return _service.drain(host)


def counts() -> list[int]:
    """Return how many calls each actor has executed, by its state."""
    assert _service is not None
    return _service.counts()


def have_state() -> bool:
    """Return whether every actor still has its initial state."""
    assert _service is not None
    return _service.have_state()


def copy_s(nbytes: int) -> float:
    """Return how long a copy of so many bytes takes within the memory of a process, in seconds."""
    source, target = bytearray(os.urandom(1 << 20) * (nbytes >> 20)), bytearray(nbytes)
    taken = []
    for _ in range(5):
        began = time.monotonic()
        target[:] = source
        taken.append(time.monotonic() - began)
    return min(taken)
