"""Received payloads that a process returns or forwards are not copied, without visible effects."""

from __future__ import annotations

import gc
import os
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from test_shared_memory import LEN, Store, returns_to

from mesh_core import Actor, Channel, Port, PortReceiver, ProcDied, endpoint, this_host
from mesh_core.testing import shared_bytes_in_use as ours

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


def pattern(seed: int, length: int = LEN) -> Bytes:
    """Return bytes that depend on the page and on the seed."""
    return ((np.arange(length) >> 6) + seed).astype(np.uint8)


class Keeper(Store):
    """Returns its payload, immediately or later."""

    def __init__(self) -> None:
        self.kept: list[Bytes] = []

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def keep(self, array: Bytes) -> int:
        self.kept.append(array)
        return int(array[-1])

    @endpoint
    def kept_now(self) -> Bytes:
        return self.kept[-1]

    @endpoint
    def sums(self) -> list[int]:
        return [int(array.sum()) for array in self.kept]

    @endpoint
    def write(self, array: Bytes, at: int) -> Bytes:
        array[at] ^= 0xFF
        return array

    @endpoint(explicit_response_port=True)
    def answer_then_write(self, port: Port[Bytes], array: Bytes) -> None:
        port.send(array)
        array[:] = 0

    @endpoint
    def parts_of(self, array: Bytes) -> list[Bytes]:
        half = len(array) // 2
        return [array[half:], array[:half], array[half - 64 : half + 64], array]

    @endpoint
    def slice_of(self, array: Bytes, length: int) -> Bytes:
        return array[:length]

    @endpoint
    def drop(self) -> None:
        self.kept.clear()
        gc.collect()


class Caller(Actor):
    """Holds payloads that another process has returned to it."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.held: list[object] = []

    @endpoint
    def hold_echo(self, seed: int) -> None:
        self.keeper.keep.call_one(pattern(seed)).get()
        self.held.append(self.keeper.kept_now.call_one().get())

    @endpoint
    def pass_on(self, array: Bytes) -> None:
        self.keeper.keep.call_one(array).get()

    @endpoint
    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def keeper(procs: ProcMesh) -> Iterator[Keeper]:
    one = procs.slice(gpus=0).spawn("keeper", Keeper)
    yield one
    one.stop().get()


def theirs(keeper: Keeper) -> int:
    return keeper.bytes_in_use.call_one().get()


def test_an_echo_uses_only_the_memory_of_the_caller(keeper: Keeper) -> None:
    array = pattern(1)
    before, theirs_before = ours(), theirs(keeper)
    answers = [keeper.echo.call_one(array).get() for _ in range(3)]
    assert theirs(keeper) == theirs_before
    assert ours() >= before + 3 * LEN
    for answer in answers:
        np.testing.assert_array_equal(answer, array)
    del answer, answers
    assert returns_to(before, ours)


def test_the_caller_can_write_to_returned_arrays_without_side_effects(keeper: Keeper) -> None:
    array = pattern(2)
    keeper.keep.call_one(array).get()
    first = keeper.kept_now.call_one().get()
    second = keeper.kept_now.call_one().get()
    assert first.flags.writeable
    first[:] = 7
    third = keeper.kept_now.call_one().get()
    for untouched in (second, third):
        np.testing.assert_array_equal(untouched, pattern(2))
    array[:] = 9
    np.testing.assert_array_equal(keeper.kept_now.call_one().get(), pattern(2))
    assert (first == 7).all()


@pytest.mark.parametrize("at", [0, LEN // 2, LEN - 1])
def test_writes_of_the_callee_before_its_reply_are_returned(keeper: Keeper, at: int) -> None:
    array = pattern(3)
    answer = keeper.write.call_one(array, at).get()
    expected = pattern(3)
    expected[at] ^= 0xFF
    np.testing.assert_array_equal(answer, expected)
    np.testing.assert_array_equal(array, pattern(3))


def test_writes_of_the_callee_after_its_reply_are_not_visible(keeper: Keeper) -> None:
    for seed in range(4):
        answer = keeper.answer_then_write.call_one(pattern(seed)).get()
        np.testing.assert_array_equal(answer, pattern(seed))


def test_overlapping_slices_are_returned_as_independent_arrays(keeper: Keeper) -> None:
    before = ours()
    array, half = pattern(4), LEN // 2
    parts = keeper.parts_of.call_one(array).get()
    expected = [array[half:], array[:half], array[half - 64 : half + 64], array]
    for part, want in zip(parts, expected, strict=True):
        np.testing.assert_array_equal(part, want)
    for value, part in enumerate(parts):
        part[:] = value
    assert [set(np.unique(part)) for part in parts] == [{0}, {1}, {2}, {3}]
    del part, parts
    assert returns_to(before, ours)


def test_several_arrays_are_returned_together_with_new_values(keeper: Keeper) -> None:
    before, theirs_before = ours(), theirs(keeper)
    sent = {"a": pattern(1), "b": pattern(2, LEN + 9), "text": "x" * LEN, "raw": b"y" * LEN}
    answer = keeper.echo.call_one(sent).get()
    np.testing.assert_array_equal(answer["a"], sent["a"])
    np.testing.assert_array_equal(answer["b"], sent["b"])
    assert (answer["text"], answer["raw"]) == (sent["text"], sent["raw"])
    del answer
    assert returns_to(before, ours)
    assert returns_to(theirs_before, lambda: theirs(keeper))


def test_a_small_slice_does_not_keep_the_whole_array_alive(keeper: Keeper) -> None:
    before = ours()
    answer = keeper.slice_of.call_one(pattern(5), 1 << 17).get()
    assert returns_to(before, ours)
    np.testing.assert_array_equal(answer, pattern(5, 1 << 17))


def test_thousands_of_echoes_leak_neither_memory_nor_descriptors(keeper: Keeper) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    array = pattern(6, 1 << 17)
    keeper.echo.call_one(array).get()
    before, theirs_before, open_before = ours(), theirs(keeper), descriptors()
    held = [keeper.echo.call_one(array) for _ in range(16)]
    for _ in range(2000):
        held.append(keeper.echo.call_one(array))
        assert held.pop(0).get()[-1] == array[-1]
    held.clear()
    assert returns_to(before, ours)
    assert returns_to(theirs_before, lambda: theirs(keeper))
    # One descriptor for each segment in concurrent use, and no more.
    assert descriptors() <= open_before + 32


def test_the_memory_of_results_of_cancelled_calls_is_released(keeper: Keeper) -> None:
    before = ours()
    futures = [keeper.echo.call_one(pattern(seed)) for seed in range(8)]
    while futures:
        futures.pop().cancel()
    for _ in range(3):
        keeper.echo.call_one(pattern(1))
    assert returns_to(before, ours)


def test_returned_arrays_are_forwarded_in_the_same_memory(keeper: Keeper, procs: ProcMesh) -> None:
    others = procs.slice(gpus=slice(1, 3)).spawn("others", Keeper)
    before = ours()
    answer = keeper.echo.call_one(pattern(7)).get()
    holds = ours()
    assert set(others.keep.call(answer).get().values()) == {int(answer[-1])}
    channel: tuple[Port[Bytes], PortReceiver[Bytes]] = Channel.open()
    channel[0].send(answer)
    again = channel[1].recv().get()
    assert ours() == holds
    answer[:] = 0
    np.testing.assert_array_equal(again, pattern(7))
    del answer, again
    for array in others.kept_now.call().get().values():
        np.testing.assert_array_equal(array, pattern(7))
    del array
    others.drop.call().get()
    assert returns_to(before, ours)
    others.stop().get()


def test_returned_arrays_outlive_the_process_that_returned_them(procs: ProcMesh) -> None:
    doomed = this_host().spawn_procs({"gpus": 1})
    keeper = doomed.spawn("keeper", Keeper)
    other = procs.slice(gpus=0).spawn("other", Keeper)
    before = ours()
    answers = [keeper.echo.call_one(pattern(seed)).get() for seed in range(3)]
    keeper.keep.call_one(pattern(8)).get()
    with pytest.raises(ProcDied):
        keeper.die.call_one().get()
    for seed in range(10, 20):
        other.echo.call_one(pattern(seed)).get()
    for seed, answer in enumerate(answers):
        np.testing.assert_array_equal(answer, pattern(seed))
    del answer, answers
    assert returns_to(before, ours)
    doomed.stop().get()
    other.stop().get()


def test_the_memory_held_by_a_killed_caller_is_released(keeper: Keeper) -> None:
    doomed = this_host().spawn_procs({"gpus": 1})
    caller = doomed.spawn("caller", Caller, keeper)
    before = theirs(keeper)
    for seed in range(3):
        caller.hold_echo.call_one(seed).get()
    with pytest.raises(ProcDied):
        caller.kill.call_one().get()
    assert returns_to(before, lambda: theirs(keeper))
    sums = keeper.sums.call_one().get()
    assert sums == [int(pattern(seed).sum()) for seed in range(3)], "they stay readable"
    doomed.stop().get()


def test_forwarded_arrays_outlive_the_process_that_forwarded_them(keeper: Keeper) -> None:
    doomed = this_host().spawn_procs({"gpus": 1})
    caller = doomed.spawn("caller", Caller, keeper)
    caller.pass_on.call_one(pattern(9)).get()
    with pytest.raises(ProcDied):
        caller.kill.call_one().get()
    for seed in range(6):
        keeper.echo.call_one(pattern(seed)).get()
    np.testing.assert_array_equal(keeper.kept_now.call_one().get(), pattern(9))
    doomed.stop().get()


def test_a_forked_child_keeps_returned_arrays(keeper: Keeper) -> None:
    answer = keeper.echo.call_one(pattern(1)).get()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read, 1)
        os._exit(0 if np.array_equal(answer, pattern(1)) else 1)
    del answer
    for seed in range(2, 6):
        keeper.echo.call_one(pattern(seed)).get()[:] = 7
    os.write(write, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(read)
    os.close(write)
