"""Payloads in shared memory, as Python code sees them."""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest

from mesh_core._core import SharedBuffer, SharedReceiver, SharedSender

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

LEN = 3 << 20
READER = 2
OTHER = 3


def ignore() -> None:
    """A release callback without effect."""


def opened(
    receiver: SharedReceiver,
    sender: SharedSender,
    *buffers: bytes | Bytes,
    on_drop: Callable[[], None] = ignore,
) -> list[SharedBuffer]:
    """Send buffers and open them on the other side."""
    fd, parts = sender.fill(list(buffers), [READER])
    receiver.learn(parts[0][0], fd)
    return receiver.open(parts, on_drop)


def pattern(seed: int, length: int = LEN) -> Bytes:
    """Return bytes that depend on the page and on the seed."""
    return ((np.arange(length) >> 6) + seed).astype(np.uint8)


def array_of(buffer: SharedBuffer) -> Bytes:
    """Return an array on the bytes of a buffer, without a copy."""
    # Before Python 3.12 no type represents the buffer protocol.
    return np.frombuffer(cast("memoryview[int]", buffer), dtype=np.uint8)


@pytest.fixture
def sender() -> SharedSender:
    return SharedSender()


@pytest.fixture
def receiver() -> SharedReceiver:
    return SharedReceiver()


def test_numpy_uses_the_bytes_in_place_and_may_write_them(
    sender: SharedSender, receiver: SharedReceiver
) -> None:
    (buffer,) = opened(receiver, sender, pattern(1))
    array = array_of(buffer)
    assert array.flags.writeable
    assert not array.flags.owndata
    assert len(buffer) == LEN
    array[7] = 99
    assert memoryview(buffer)[7] == 99


def test_a_view_has_the_bytes_as_they_were_sent(
    sender: SharedSender, receiver: SharedReceiver
) -> None:
    long, empty, short = opened(receiver, sender, pattern(1), b"", b"short")
    assert bytes(long) == pattern(1).tobytes()
    assert bytes(empty) == b""
    view = memoryview(short)
    assert (view.nbytes, view.readonly, view.format, bytes(view)) == (5, False, "B", b"short")


def test_a_frozen_buffer_can_only_be_read(sender: SharedSender, receiver: SharedReceiver) -> None:
    for seed in range(3):
        fd, parts = sender.fill([pattern(seed)], [READER])
        receiver.learn(parts[0][0], fd)
        (buffer,) = receiver.open(parts, ignore)
        view = memoryview(buffer.frozen())
        assert view.readonly
        assert view.nbytes == LEN
        del buffer
        assert bytes(view) == pattern(seed).tobytes()
        view.release()
        sender.release(parts[0][0], parts[0][1], READER)


def test_writes_of_a_receiver_are_invisible_to_others(sender: SharedSender) -> None:
    ours, theirs = SharedReceiver(), SharedReceiver()
    source = pattern(1)
    fd, parts = sender.fill([source], [READER, OTHER])
    for receiver in (ours, theirs):
        receiver.learn(parts[0][0], fd)
    mine = array_of(ours.open(parts, ignore)[0])
    early = array_of(theirs.open(parts, ignore)[0])
    mine += 1
    late = array_of(theirs.open(parts, ignore)[0])
    np.testing.assert_array_equal(mine, pattern(2))
    np.testing.assert_array_equal(early, source)
    np.testing.assert_array_equal(late, source)


def test_later_writes_of_the_sender_are_invisible_to_receivers(
    sender: SharedSender, receiver: SharedReceiver
) -> None:
    source = pattern(1)
    (buffer,) = opened(receiver, sender, source)
    source[:] = 0
    np.testing.assert_array_equal(array_of(buffer), pattern(1))


def test_a_message_is_released_with_the_last_array_on_it(
    sender: SharedSender, receiver: SharedReceiver
) -> None:
    released: list[bool] = []
    first, second = opened(
        receiver, sender, pattern(1), b"x", on_drop=lambda: released.append(True)
    )
    array = array_of(first)[100:200]
    view = memoryview(second)
    del first, second
    gc.collect()
    np.testing.assert_array_equal(array, pattern(1)[100:200])
    del array
    assert not released
    view.release()
    assert released == [True]


def test_writes_to_one_message_do_not_appear_in_the_next(
    sender: SharedSender, receiver: SharedReceiver
) -> None:
    for seed in range(4):
        fd, parts = sender.fill([pattern(seed)], [READER])
        receiver.learn(parts[0][0], fd)
        (buffer,) = receiver.open(parts, ignore)
        array = array_of(buffer)
        np.testing.assert_array_equal(array, pattern(seed))
        array[:: 4096 * (seed + 1)] = 0xEE
        del array, buffer
        sender.release(parts[0][0], parts[0][1], READER)
    assert sender.bytes_in_use() == 0


def test_pickle_builds_arrays_on_the_shared_bytes(
    sender: SharedSender, receiver: SharedReceiver
) -> None:
    source = {"weights": np.arange(1 << 18, dtype=np.float64), "bias": np.ones(3)}
    raw: list[pickle.PickleBuffer] = []
    body = pickle.dumps(source, protocol=5, buffer_callback=raw.append)
    buffers = opened(receiver, sender, *[np.frombuffer(b.raw(), np.uint8) for b in raw])
    arrived = pickle.loads(body, buffers=buffers)
    del buffers, raw
    gc.collect()
    arrived["weights"] *= 2
    np.testing.assert_array_equal(arrived["weights"], source["weights"] * 2)
    np.testing.assert_array_equal(arrived["bias"], np.ones(3))


def test_an_invalid_part_is_an_error(sender: SharedSender, receiver: SharedReceiver) -> None:
    fd, [(segment, generation, _, _)] = sender.fill([b"bytes"], [READER])
    receiver.learn(segment, fd)
    with pytest.raises(OSError, match="beyond the end of the segment"):
        receiver.open([(segment, generation, 0, 1 << 40)], ignore)
    with pytest.raises(OSError, match="is unknown"):
        receiver.open([(segment + 1, generation, 0, 1)], ignore)


def test_a_buffer_may_be_dropped_by_any_thread(
    sender: SharedSender, receiver: SharedReceiver
) -> None:
    released: list[int] = []
    held = [
        opened(receiver, sender, pattern(seed), on_drop=lambda: released.append(1))
        for seed in range(8)
    ]

    def drop() -> None:
        held.pop()

    threads = [threading.Thread(target=drop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(released) == 8


READER_SCRIPT = """
import json, sys
import numpy as np
from mesh_core._core import SharedReceiver

fd, parts = json.loads(sys.argv[1])
receiver = SharedReceiver()
receiver.learn(parts[0][0], fd)
(buffer,) = receiver.open([tuple(part) for part in parts], lambda: print("released", flush=True))
array = np.frombuffer(buffer, dtype=np.uint8)
before = int(array.sum())
array[:] = int(sys.argv[2])
print(before, flush=True)
sys.stdin.readline()
print(int(array.sum()), flush=True)
del array, buffer
"""


def test_writes_of_two_processes_to_one_message_are_isolated(
    sender: SharedSender,
) -> None:
    source = pattern(1)
    fd, parts = sender.fill([source], [READER, OTHER])

    def start(value: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", READER_SCRIPT, json.dumps([fd, parts]), str(value)],
            pass_fds=[fd],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(reader: subprocess.Popen[str]) -> str:
        assert reader.stdout is not None
        return reader.stdout.readline().strip()

    total = str(int(source.sum()))
    with start(1) as one:
        assert answer(one) == total
        # This starts after the first process has written all that it received.
        with start(2) as two:
            assert answer(two) == total
            for value, reader in ((1, one), (2, two)):
                rest, _ = reader.communicate("go on\n")
                assert rest.split() == [str(value * LEN), "released"]


def test_a_forked_child_keeps_the_received_bytes(
    sender: SharedSender, receiver: SharedReceiver
) -> None:
    fd, parts = sender.fill([pattern(1)], [READER])
    receiver.learn(parts[0][0], fd)
    array = array_of(receiver.open(parts, ignore)[0])
    receiver.prepare_fork()
    sender.release(parts[0][0], parts[0][1], READER)
    sender.fill([pattern(5)], [READER])
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(array, pattern(1)) else 1)
    assert os.waitpid(child, 0)[1] == 0
