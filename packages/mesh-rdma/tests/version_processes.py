"""Processes that write and read versioned buffers by a plan; a script of the fork server."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import fork_server
from stamps import Stamp, fill
from version_plans import STRIDE, BufferPlan, ReaderPlan, Tally, Write, WriterPlan
from version_reading import Reading

from mesh_rdma import RDMABoundsError, RDMATimeout, VersionedBuffer

if TYPE_CHECKING:
    import socket

    from mesh_rdma import VersionedReader

__all__ = ["life_of", "publish", "read", "write"]

# An upper bound of the number of buffers in a process.
_BUFFERS_MAX = 8
# An attempt that finds no free area is abandoned; a dead process may still hold areas.
_FREE_AREA_S = 0.2
# How long the release of leases may take.
_LEASES_S = 30.0


def life_of(writer: int, buffer: int) -> int:
    """Return the number with which the versions of a buffer of a writer are stamped."""
    return writer * _BUFFERS_MAX + buffer


class _GivenUp(Exception):
    """The writer abandons an attempt."""


class _Writing:
    """A versioned buffer, and the threads that write it."""

    def __init__(self, plan: BufferPlan, life: int) -> None:
        self.buffer = VersionedBuffer(plan.nbytes, versions=plan.versions)
        self.published: list[int] = []
        self.failure: str | None = None
        self._plan = plan
        self._life = life
        self._attempts = 0
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(part,), daemon=True) for part in plan.writes
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def write_all_places(self) -> None:
        """Publish until all areas were written; no version may still be held."""
        for _ in range(self._plan.versions + 1):
            step = self._last() + STRIDE
            with self.buffer.write(step=step, timeout=_LEASES_S) as memory:
                fill(memory, Stamp(self._life, step), 0, self._plan.nbytes)
            self.published.append(step)

    def _run(self, writes: tuple[Write, ...]) -> None:
        try:
            while True:
                for write in writes:
                    if self._is_over.is_set():
                        return
                    # No area is free, or the other thread is writing or has written a larger
                    # number.
                    with contextlib.suppress(RDMATimeout, RDMABoundsError, _GivenUp):
                        self._attempt(write)
                    # This gives other Python threads a turn.
                    time.sleep(0)
        except Exception as error:
            self.failure = repr(error)

    def _attempt(self, write: Write) -> None:
        self._attempts += 1
        is_last = self._attempts == self._plan.dies_at
        size = self._plan.nbytes
        step = self._last() + write.gap * STRIDE
        if write.manner == "copied" and not is_last:
            source = bytearray(size)
            fill(memoryview(source), Stamp(self._life, step), 0, size)
            self.buffer.publish(source, step=step, timeout=_FREE_AREA_S)
        else:
            is_given_up = write.manner == "given up"
            if is_given_up:
                step -= 1
            stamp = Stamp(self._life, step, is_given_up)
            with self.buffer.write(step=step, timeout=_FREE_AREA_S) as memory:
                fill(memory, stamp, 0, write.cut)
                time.sleep(0)
                if is_last:
                    os.kill(os.getpid(), signal.SIGKILL)
                if is_given_up:
                    raise _GivenUp
                fill(memory, stamp, write.cut, size)
        self.published.append(step)

    def _last(self) -> int:
        step = self.buffer.step
        return 0 if step is None else step


def write(channel: socket.socket, number: int, plan: WriterPlan) -> None:
    """Write until requested to stop; then send the published versions and the readers' tallies."""
    writings = [_Writing(part, life_of(number, at)) for at, part in enumerate(plan.buffers)]
    # They are sent as bytes, because a process that forwards them must not hold the buffers.
    fork_server.send(channel, pickle.dumps([writing.buffer for writing in writings]))
    readers = [writing.buffer.reader() for writing in writings]
    for writing in writings:
        writing.start()
    tallies = _read_all(readers, number, plan.readers)
    fork_server.receive(channel)
    for writing in writings:
        writing.stop()
        if writing.failure is None:
            writing.write_all_places()
    published = [(writing.published, writing.failure) for writing in writings]
    fork_server.send(channel, (published, tallies))


def read(channel: socket.socket, plans: tuple[ReaderPlan, ...], is_endless: bool) -> None:
    """Read one writer after another, and send the tallies for each of them."""
    with contextlib.suppress(EOFError):
        while True:
            number, handles = fork_server.receive(channel)
            telling = channel if is_endless else None
            fork_server.send(channel, _read_all(pickle.loads(handles), number, plans, telling))


def publish(channel: socket.socket, nbytes: int) -> None:
    """Publish on request; after each order, send a reader."""
    buffer = VersionedBuffer(nbytes)
    with contextlib.suppress(EOFError):
        while True:
            order, *arguments = fork_server.receive(channel)
            if order == "publish":
                buffer.publish(arguments[0].encode(), timeout=_LEASES_S)
            elif order == "begin anew":
                buffer = VersionedBuffer(nbytes)
            elif (pid := os.fork()) == 0:
                del buffer
                gc.collect()
                os._exit(0)
            else:
                # Children of a fork server are reaped automatically.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
            fork_server.send(channel, buffer)


def _read_all(
    readers: list[VersionedReader],
    number: int,
    plans: tuple[ReaderPlan, ...],
    telling: socket.socket | None = None,
) -> list[Tally]:
    """Read in threads; endlessly if `telling` is given, which is notified of first versions."""
    visited = _Telling(telling)
    readings = []
    for plan in plans:
        life = life_of(number, plan.buffer)
        readings.append(Reading(readers[plan.buffer], plan, life))
    is_endless = telling is not None
    threads = [
        threading.Thread(target=reading.run, args=(is_endless, visited), daemon=True)
        for reading in readings
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [reading.tally for reading in readings]


class _Telling:
    """Sends a message on the first visit of many."""

    def __init__(self, channel: socket.socket | None) -> None:
        self._channel = channel
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            if self._channel is not None:
                fork_server.send(self._channel, "under way")
                self._channel = None


if __name__ == "__main__":
    fork_server.main(dict[str, Any](publish=publish, read=read, write=write))
