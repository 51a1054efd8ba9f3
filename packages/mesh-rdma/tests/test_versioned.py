"""Versioned buffers: the behavior that their writers and readers observe."""

from __future__ import annotations

import contextlib
import gc
import pickle
import threading
from typing import TYPE_CHECKING

import pytest
import version_processes
from fork_server import ChildProcess, ForkServer

from mesh_core.testing import wait_until
from mesh_rdma import (
    RDMABoundsError,
    RDMAPeerDied,
    RDMAReadOnlyError,
    RDMAReleased,
    RDMATimeout,
    VersionedBuffer,
    VersionedReader,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# A short timeout that is expected to expire, and a long one that is not.
SOON_S = 0.02
LONG_S = 30.0


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer(version_processes.__file__) as fork_server:
        yield fork_server


@pytest.fixture
def owner(fork_server: ForkServer) -> Iterator[ChildProcess]:
    """Another process that publishes on request."""
    child = fork_server.start("publish", 4)
    with child.channel:
        yield child


def told(owner: ChildProcess, *order: str | int) -> VersionedReader:
    """Send an order to the process; return its reader."""
    owner.send(order)
    reader = owner.receive()
    assert isinstance(reader, VersionedReader)
    return reader


def latest(reader: VersionedReader) -> tuple[int, bytes]:
    destination = bytearray(reader.size())
    return reader.read_into(destination).get(), bytes(destination)


def test_versions_are_read_as_they_were_published() -> None:
    buffer = VersionedBuffer(4)
    reader = buffer.reader()
    assert (buffer.step, reader.step(), buffer.size(), reader.size()) == (None, None, 4, 4)
    assert buffer.publish(b"zero") == 0
    assert buffer.publish(b"nine", step=9) == 9
    with buffer.write() as memory:
        memory[:] = b"next"
        assert latest(reader) == (9, b"nine")
    assert (buffer.step, reader.step()) == (10, 10)
    assert latest(reader) == (10, b"next")


@pytest.mark.parametrize(("nbytes", "versions"), [(0, 3), (-1, 3), (1, 1)])
def test_an_invalid_size_or_number_of_versions_is_refused(nbytes: int, versions: int) -> None:
    with pytest.raises(RDMABoundsError):
        VersionedBuffer(nbytes, versions=versions)


@pytest.mark.parametrize(("data", "step"), [(b"short", 9), (b"right", 8), (b"right", 7)])
def test_an_invalid_version_is_refused_and_the_latest_remains(data: bytes, step: int) -> None:
    buffer = VersionedBuffer(5 if data == b"right" else 6)
    first = b"first"[: buffer.size()].ljust(buffer.size())
    buffer.publish(first, step=8)
    with pytest.raises(RDMABoundsError):
        buffer.publish(data, step=step)
    assert latest(buffer.reader()) == (8, first)


def test_a_failed_write_publishes_nothing() -> None:
    buffer = VersionedBuffer(4, versions=2)
    buffer.publish(b"good")
    for _ in range(5):
        with contextlib.suppress(ZeroDivisionError), buffer.write() as memory:
            memory[:2] = b"ba"
            raise ZeroDivisionError
        assert latest(buffer.reader()) == (0, b"good")
    assert buffer.publish(b"more") == 1


def test_one_version_is_written_at_a_time() -> None:
    buffer = VersionedBuffer(4)
    with buffer.write(), pytest.raises(RDMABoundsError), buffer.write():
        pass
    assert buffer.step == 0


def test_writer_waits_for_leases_and_views(owner: ChildProcess) -> None:
    """The area of a version is not written while a reader of any process holds or views it."""
    buffer = VersionedBuffer(4, versions=2)
    reader = buffer.reader()
    buffer.publish(b"held")
    lease = reader.hold()
    view = lease.view()
    buffer.publish(b"next")
    with pytest.raises(RDMATimeout, match="versions=3"):
        buffer.publish(b"more", timeout=SOON_S)
    lease.release()
    with pytest.raises(RDMATimeout):
        buffer.publish(b"more", timeout=SOON_S)
    assert bytes(view) == b"held"
    del view
    assert buffer.publish(b"more", timeout=LONG_S) == 2


def test_a_read_that_fails_does_not_extend_the_lease(fork_server: ForkServer) -> None:
    """The writer can reuse the area although no garbage collection has run."""
    nbytes = 20_000
    destination = bytearray(nbytes)
    owner = fork_server.start("publish", nbytes)
    gc.disable()
    try:
        with owner.channel:
            # The third publication needs the area of the first version.
            for number in range(4):
                reader = told(owner, "publish", "x" * nbytes)
                with reader.hold() as version, pytest.raises(RDMATimeout):
                    version.buffer.read_into(destination, timeout=0).get()
                assert version.step == number
    finally:
        gc.enable()


@pytest.mark.parametrize("dropped_by", ["by its reader", "by another reader"])
def test_a_viewed_version_remains_valid_after_it_is_dropped(
    owner: ChildProcess, dropped_by: str
) -> None:
    reader = told(owner, "publish", "held")
    version = reader.hold()
    view = version.view()
    dropping = version if dropped_by == "by its reader" else reader.hold()
    dropping.buffer.drop().get()
    del version, dropping
    # Write all other areas repeatedly.
    for text in ("next", "more", "then", "last", "best"):
        reader = told(owner, "publish", text)
    assert bytes(view) == b"held"
    assert latest(reader) == (5, b"best")


def test_a_released_lease_raises_an_error() -> None:
    buffer = VersionedBuffer(4)
    buffer.publish(b"held")
    with buffer.reader().hold() as lease:
        destination = bytearray(4)
        lease.buffer.read_into(destination).get()
        assert destination == b"held"
        with pytest.raises(RDMAReadOnlyError):
            lease.buffer.write_from(b"mine")
    with pytest.raises(RDMAReleased):
        lease.view()


def test_reader_waits_for_a_version(owner: ChildProcess) -> None:
    """The wait times out, or ends when a later version is published."""
    reader = told(owner, "publish", "zero")
    unwritten = VersionedBuffer(4)
    for late in (
        lambda: reader.hold(after=0, timeout=SOON_S),
        lambda: reader.read_into(bytearray(4), after=0, timeout=SOON_S).get(),
        lambda: unwritten.reader().hold(timeout=SOON_S),
    ):
        with pytest.raises(RDMATimeout):
            late()
    destination = bytearray(4)
    reading = reader.read_into(destination, after=0)
    holding = threading.Thread(target=lambda: reader.hold(after=0).release())
    holding.start()
    told(owner, "publish", "next")
    assert (reading.get(), bytes(destination)) == (1, b"next")
    holding.join()


def test_a_reader_can_be_forwarded(owner: ChildProcess) -> None:
    reader = pickle.loads(pickle.dumps(told(owner, "publish", "sent")))
    assert latest(reader) == (0, b"sent")


def is_lost(reader: VersionedReader) -> bool:
    try:
        reader.step()
    except RDMAPeerDied:
        return True
    return False


def test_readers_fail_after_the_writer_process_dies(owner: ChildProcess) -> None:
    """A view remains valid."""
    reader = told(owner, "publish", "seen")
    version = reader.hold()
    view = version.view()
    owner.kill()
    owner.wait_for_end()
    # Another thread notices the end of the process a moment later.
    wait_until(lambda: is_lost(reader))
    for lost in (
        reader.step,
        lambda: reader.hold(timeout=LONG_S),
        lambda: reader.hold(after=0, timeout=LONG_S),
        lambda: reader.read_into(bytearray(4), after=0, timeout=LONG_S).get(),
        lambda: version.buffer.read_into(bytearray(4)).get(),
    ):
        with pytest.raises(RDMAPeerDied):
            lost()
    assert bytes(view) == b"seen"


def test_readers_fail_after_the_buffer_is_released(owner: ChildProcess) -> None:
    """Waiting readers are notified, too; a held version remains valid."""
    reader = told(owner, "publish", "held")
    version = reader.hold()
    waiting = reader.read_into(bytearray(4), after=0, timeout=LONG_S)
    told(owner, "begin anew")
    for lost in (
        reader.step,
        lambda: reader.hold(timeout=LONG_S),
        lambda: reader.hold(after=0, timeout=LONG_S),
        lambda: reader.read_into(bytearray(4), timeout=LONG_S).get(),
        waiting.get,
    ):
        with pytest.raises(RDMAReleased):
            lost()
    destination = bytearray(4)
    version.buffer.read_into(destination).get()
    assert destination == b"held"


def test_readers_in_the_same_process_fail_after_the_buffer_is_released() -> None:
    buffer = VersionedBuffer(4)
    reader = buffer.reader()
    buffer.publish(b"gone")
    del buffer
    gc.collect()
    with pytest.raises(RDMAReleased):
        reader.hold(timeout=LONG_S)


def test_a_reader_continues_with_the_version_after_a_dropped_one(owner: ChildProcess) -> None:
    reader = told(owner, "publish", "drop")
    reader.hold().buffer.drop().get()
    with pytest.raises(RDMAReleased, match="after=0"):
        reader.hold(timeout=LONG_S)
    told(owner, "publish", "next")
    assert latest(reader) == (1, b"next")


def test_a_forked_child_of_the_writer_does_not_release_the_buffer(owner: ChildProcess) -> None:
    """A process that was forked from the writer has a copy of the buffer, which has no effect."""
    reader = told(owner, "publish", "kept")
    told(owner, "fork")
    assert latest(reader) == (0, b"kept")
