"""Futures: used from threads and from event loops, early, late and repeatedly."""

from __future__ import annotations

import asyncio
import gc
import pickle
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from whole_program import run

from mesh_core import Actor, Future, endpoint, returns_future

if TYPE_CHECKING:
    from pathlib import Path

    from mesh_core import ProcMesh


class Latch(Actor):
    """Replies on request."""

    def __init__(self) -> None:
        self.ports: list[Any] = []

    @endpoint(explicit_response_port=True)
    def wait(self, port: Any) -> None:
        self.ports.append(port)

    @endpoint
    def open(self, value: Any = None) -> int:
        count = len(self.ports)
        for port in self.ports:
            port.exception(value) if isinstance(value, Exception) else port.send(value)
        self.ports.clear()
        return count

    @endpoint
    def value(self, value: Any) -> Any:
        return value

    @endpoint
    def fail(self) -> None:
        raise LookupError("as asked")


@pytest.fixture(scope="module")
def latch(all_procs: ProcMesh) -> Latch:
    return all_procs.slice(gpus=0).spawn("latch", Latch)


def test_a_future_inside_an_argument_is_rejected(latch: Latch) -> None:
    future = latch.value.call_one(1)
    with pytest.raises(TypeError, match=r"^argument 'value'\[0\]: a future cannot be sent inside"):
        latch.value.call_one([future])
    assert future.get() == 1


def test_a_future_cannot_be_constructed_or_pickled(latch: Latch) -> None:
    with pytest.raises(TypeError):
        Future()
    with pytest.raises(TypeError):
        pickle.dumps(latch.value.call_one(1))


def test_a_result_can_be_read_repeatedly_in_any_way(latch: Latch) -> None:
    future = latch.value.call_one([1])
    first = future.get()
    assert future.get() is first
    assert future.result() is first
    assert future.exception() is None
    assert future.done()

    async def again() -> Any:
        assert await future is first
        assert await future.as_asyncio() is first
        return await asyncio.gather(future, future)

    assert asyncio.run(again()) == [first, first]
    assert asyncio.run(again()) == [first, first]


def test_a_failure_can_be_read_repeatedly(latch: Latch) -> None:
    future = latch.fail.call_one()
    for _ in range(3):
        with pytest.raises(LookupError, match="as asked"):
            future.get()
    assert isinstance(future.exception(), LookupError)

    async def again() -> None:
        await future

    with pytest.raises(LookupError):
        asyncio.run(again())


def test_raising_a_failure_repeatedly_does_not_grow_its_traceback(latch: Latch) -> None:
    future = latch.fail.call_one()

    def depth() -> int:
        try:
            future.get()
        except LookupError as error:
            count, trace = 0, error.__traceback__
            while trace is not None:
                count, trace = count + 1, trace.tb_next
            return count
        return 0

    assert depth() == depth() == depth()


def test_get_can_be_called_again_after_a_timeout(latch: Latch) -> None:
    future = latch.wait.call_one()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            future.get(timeout=0.01)
    with pytest.raises(TimeoutError):
        future.exception(timeout=0)
    assert not future.done()
    latch.open.call_one("now").get()
    assert future.get(timeout=10) == "now"


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
def test_an_invalid_timeout_is_refused(latch: Latch, timeout: float) -> None:
    future = latch.wait.call_one()
    with pytest.raises(ValueError, match="timeout"):
        future.get(timeout=timeout)
    latch.open.call_one().get()
    with pytest.raises(ValueError, match="timeout"):
        latch.value.options(timeout=timeout)


def test_done_never_blocks_and_becomes_true(latch: Latch) -> None:
    future = latch.wait.call_one()
    assert not future.done()
    latch.open.call_one(3).get()
    assert future.done()
    assert future.get() == 3


def test_several_threads_may_wait_for_one_future(latch: Latch) -> None:
    future = latch.wait.call_one()
    started = threading.Barrier(9)
    results: list[Any] = []

    def wait() -> None:
        started.wait()
        results.append(future.get())

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    started.wait()
    with pytest.raises(TimeoutError):
        future.get(timeout=0.05)
    latch.open.call_one("all").get()
    for thread in threads:
        thread.join(10)
    assert results == ["all"] * 8


def test_a_thread_and_two_event_loops_may_wait_for_one_future(latch: Latch) -> None:
    future = latch.wait.call_one()
    results: list[Any] = []
    ready = threading.Barrier(4)

    async def wait_async() -> None:
        task = asyncio.ensure_future(future.as_asyncio())
        await asyncio.sleep(0)
        ready.wait()
        results.append(await task)

    def wait() -> None:
        ready.wait()
        results.append(future.get())

    threads = [
        threading.Thread(target=lambda: asyncio.run(wait_async())),
        threading.Thread(target=lambda: asyncio.run(wait_async())),
        threading.Thread(target=wait),
    ]
    for thread in threads:
        thread.start()
    ready.wait()
    latch.open.call_one("both").get()
    for thread in threads:
        thread.join(10)
    assert results == ["both"] * 3


def test_callbacks_are_called_once_with_the_future(latch: Latch) -> None:
    future = latch.wait.call_one()
    called = threading.Semaphore(0)
    seen: list[Any] = []

    def note(done: Future[Any]) -> None:
        seen.append((done.get(), done is future))
        called.release()

    future.add_done_callback(note)
    future.add_done_callback(note)
    latch.open.call_one(5).get()
    assert called.acquire(timeout=10)
    assert called.acquire(timeout=10)
    future.add_done_callback(note)
    assert seen == [(5, True)] * 3


def test_a_callback_is_called_even_if_a_thread_gets_the_result(latch: Latch) -> None:
    future = latch.wait.call_one()
    called = threading.Event()
    future.add_done_callback(lambda _: called.set())
    latch.open.call_one(5)
    assert future.get() == 5
    assert called.wait(10)


def test_callbacks_are_called_for_failures_and_cancellation(latch: Latch) -> None:
    failing, cancelled = latch.fail.call_one(), latch.wait.call_one()
    seen: list[Any] = []
    called = threading.Semaphore(0)
    for future in (failing, cancelled):
        future.add_done_callback(lambda done: (seen.append(done.exception()), called.release()))
    cancelled.cancel()
    assert called.acquire(timeout=10)
    assert called.acquire(timeout=10)
    assert {type(error).__name__ for error in seen} == {"ActorError[LookupError]", "CallCancelled"}


def test_await_and_as_asyncio_raise_outside_of_an_event_loop(latch: Latch) -> None:
    future = latch.wait.call_one()
    with pytest.raises(RuntimeError, match="loop"):
        future.as_asyncio()
    with pytest.raises(RuntimeError, match="loop"):
        next(iter(future.__await__()))
    latch.open.call_one().get()


def test_cancelling_an_observer_does_not_cancel_the_call(latch: Latch) -> None:
    async def observe() -> Any:
        future = latch.wait.call_one()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.01)
        observer = future.as_asyncio()
        await asyncio.sleep(0)
        observer.cancel()
        await asyncio.gather(observer, return_exceptions=True)
        await latch.open.call_one("still")
        return await future

    assert asyncio.run(observe()) == "still"


def test_ctrl_c_interrupts_a_wait_and_the_future_stays_valid(latch: Latch) -> None:
    future = latch.wait.call_one()
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        future.get()
    latch.open.call_one("later").get()
    assert future.get() == "later"


def test_ctrl_c_in_an_interactive_session_notes_that_the_call_continues(
    latch: Latch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    future = latch.wait.call_one()
    timer = threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        future.get()
    timer.join()
    assert caught.value.__notes__ == [
        "the call of 'wait' continues: get() of its future waits for it again, and cancel() ends it"
    ]
    assert future.cancel()


def test_an_attribute_error_says_to_wait_for_the_value_first(latch: Latch) -> None:
    future = latch.value.call_one([1])
    with pytest.raises(AttributeError, match=r"no 'append': wait for its value first"):
        _ = future.append  # type: ignore[attr-defined]
    assert future.get() == [1]


def test_dropped_futures_leave_no_pending_waits(latch: Latch) -> None:
    from mesh_core._runtime.runtime import runtime

    # Calls of earlier tests may not have ended yet.
    earlier = set(runtime().engine.waits())
    for _ in range(100):
        latch.value.call_one(b"x" * 1000)
    latch.value.call_one(1).get()
    gc.collect()
    assert set(runtime().engine.waits()) <= earlier


def test_returns_future_supports_sync_and_async_callers() -> None:
    @returns_future
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return n * 2

    @returns_future
    async def fail() -> None:
        raise LookupError("inside")

    assert double(4).get() == 8

    async def both() -> int:
        return await double(1) + await double(2)

    assert asyncio.run(both()) == 6
    with pytest.raises(LookupError):
        fail().get()
    assert isinstance(fail().exception(), LookupError)


def test_returns_future_can_be_cancelled() -> None:
    @returns_future
    async def forever() -> None:
        await asyncio.Event().wait()

    future = forever()
    assert future.cancel()
    assert future.done()
    assert not future.cancel()


def test_an_exception_in_a_signal_handler_between_calls_reaches_the_program(tmp_path: Path) -> None:
    # A separate program, because other listeners to garbage collections would lose them.
    ended = run(
        tmp_path,
        """
        class Stop(BaseException):
            pass

        def stop(*_):
            raise Stop

        signal.signal(signal.SIGALRM, stop)
        worker = this_host().spawn_procs().spawn("worker", Worker)
        for _ in range(100):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.003)
                while True:
                    worker.add.call_one().get()
            except Stop:
                continue
        print("each was raised")
        """,
    )
    assert (ended.status, ended.out) == (0, "each was raised\n"), ended.err
