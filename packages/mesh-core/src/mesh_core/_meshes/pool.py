"""A pool of processes with the interface of `concurrent.futures.Executor`."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Executor
from concurrent.futures import Future as PoolFuture
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import chain, islice
from types import FunctionType
from typing import Any, NamedTuple, ParamSpec, TypeVar

from mesh_core._calls.actor import Actor
from mesh_core._calls.endpoint_decorators import endpoint
from mesh_core._calls.event_loop import loop_thread, waker_of
from mesh_core._calls.future import CallFuture
from mesh_core._calls.rank_slots import RankSlots
from mesh_core._errors import ActorFailed, HostDied, MeshStopped, ProcDied
from mesh_core._serialization.pickler import is_importable
from mesh_core._supervision.policy import RestartPolicy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mesh_core._calls.future import Future
    from mesh_core._meshes.host_mesh import HostMesh

__all__ = ["ProcPool"]

P = ParamSpec("P")
T = TypeVar("T")

# Functions may kill their processes often, but processes that die at every start end the pool.
_DEATHS_PER_PROC = 50
_DEATHS_PERIOD_S = 10.0
_FUNCTIONS_MAX = 256


class _PoolWorker(Actor):
    """Runs functions."""

    def __init__(
        self, initializer: type[SentFunction] | Callable[..., object] | None, initargs: Any
    ) -> None:
        # The values that the initializer has assigned to globals of the script, by name.
        self._assigned: dict[str, Any] = {}
        self._known: set[Any] = set()
        if initializer is not None:
            function = _function_of(initializer)
            before = dict(function.__globals__) if isinstance(function, FunctionType) else {}
            function(*initargs)
            if function is not initializer:
                self._assigned = {
                    name: value
                    for name, value in function.__globals__.items()
                    if name not in before or before[name] is not value
                }

    @endpoint
    def run(
        self,
        function: type[SentFunction] | Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
    ) -> Any:
        """Run a function once, or, if `kwargs` is None, for each item of a chunk."""
        called = _function_of(function)
        if called is not function and function not in self._known:
            # Functions of the script arrive with a copy of the globals that they use.
            self._known.add(function)
            called.__globals__.update(self._assigned)
        if kwargs is None:
            return [called(*item) for item in args]
        return called(*args, **kwargs)


class _Task:
    __slots__ = ("args", "function", "future", "kwargs", "retries")

    def __init__(
        self,
        function: type[SentFunction] | Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        retries: int,
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.retries = retries
        self.future: PoolFuture[Any] = PoolFuture()


class SentFunction:
    """Base of classes that contain a function of the script.

    Classes are pickled once, and again only when a name that they use has been rebound.
    """

    function: staticmethod[..., Any]


def _function_of(given: type[SentFunction] | Callable[..., Any]) -> Any:
    if isinstance(given, type) and issubclass(given, SentFunction):
        return given.function
    return given


class _SentFunctions:
    """The classes of functions that other processes cannot import."""

    def __init__(self) -> None:
        self._classes: dict[Callable[..., Any], type[SentFunction]] = {}

    def sent(self, function: Callable[..., Any]) -> type[SentFunction] | Callable[..., Any]:
        """Return the object to send for a function."""
        if not isinstance(function, FunctionType) or is_importable(function):
            return function
        made = self._classes.get(function)
        if made is None:
            if len(self._classes) >= _FUNCTIONS_MAX:
                self._classes.clear()
            namespace = {"function": staticmethod(function), "__module__": function.__module__}
            made = self._classes[function] = type(function.__name__, (SentFunction,), namespace)
        return made


class _OfChunk(NamedTuple):
    """A function for `submit` that runs for each item of a chunk."""

    function: Callable[..., Any]

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("the function of a chunk can only be called by submit")


class ProcPool(Executor):
    """Processes that run functions, as returned by `HostMesh.pool`.

    It can be used wherever a `ProcessPoolExecutor` can: `submit` returns futures of
    `concurrent.futures`. Unlike there, the death of a process fails only the function that it ran:
    its future raises `ProcDied`, and the process is started again.
    """

    def __init__(
        self,
        hosts: HostMesh,
        procs: int,
        *,
        initializer: Callable[..., object] | None,
        initargs: tuple[Any, ...],
        retries: int,
        name: str,
    ) -> None:
        if procs < 1 or retries < 0:
            raise ValueError(f"procs={procs} must be positive, and retries={retries} not negative")
        self._procs = hosts.spawn_procs({"workers": procs}, name=name)
        count = len(self._procs)
        policy = RestartPolicy(
            "permanent", intensity_max=_DEATHS_PER_PROC * count, period_s=_DEATHS_PERIOD_S
        )
        self._functions = _SentFunctions()
        first = None if initializer is None else self._functions.sent(initializer)
        workers: Any = self._procs.spawn(name, _PoolWorker, first, initargs, restart=policy)
        self._workers = workers
        self._run = self._workers.run
        # Libraries read this attribute of executors to choose the size of chunks.
        self._max_workers = count
        self._retries = retries
        self._lock = threading.Lock()
        self._slots = RankSlots(workers, 1)
        self._waiting: deque[_Task] = deque()
        self._running = 0
        self._is_recovering = False
        self._is_closing = False
        self._broken: BaseException | None = None
        self._last_error: BaseException | None = None
        self._stopped: Future[None] | None = None
        self._idle = threading.Event()
        if initializer is not None:
            self._workers.initialized.add_done_callback(self._start)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> PoolFuture[T]:
        """Run a function in the next idle process; functions wait in the order of submission.

        Returns:
            A future of `concurrent.futures`. It raises errors of the function, `TypeError` if the
            function or its arguments cannot be pickled, and `ProcDied` or `HostDied` if the process
            dies while it runs the function.

        Raises:
            RuntimeError: The pool is shut down.
            BrokenProcessPool: Its processes cannot be started again.
        """
        if isinstance(fn, _OfChunk):
            (chunk,) = args
            task = _Task(self._functions.sent(fn.function), chunk, None, self._retries)  # type: ignore[arg-type]
        else:
            task = _Task(self._functions.sent(fn), args, kwargs, self._retries)
        with self._lock:
            if self._broken is not None:
                raise _broken(self._broken)
            if self._is_closing:
                raise RuntimeError("the pool is shut down: create another one")
            self._waiting.append(task)
        self._dispatch()
        return task.future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        **options: Any,
    ) -> Iterator[T]:
        """Run a function for each item, and yield the results in the order of the items.

        Args:
            fn: The function.
            iterables: The arguments of each run, as in the built-in `map`.
            timeout: Maximum time for all results, in seconds.
            chunksize: Number of items that a process gets at a time; more than one reduces the cost
                of very short functions.
            options: Passed to `concurrent.futures.Executor.map`.

        Raises:
            ValueError: `chunksize` is less than 1.
            TimeoutError: The timeout expired; raised by the iteration.
        """
        if chunksize < 1:
            raise ValueError(f"chunksize {chunksize} is less than 1")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout, **options)
        chunks = _chunks(zip(*iterables, strict=False), chunksize)
        run: Any = _OfChunk(fn)
        results: Iterator[list[T]] = super().map(run, chunks, timeout=timeout, **options)
        return chain.from_iterable(results)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop the processes when all submitted functions have ended.

        Args:
            wait: Return only then.
            cancel_futures: Cancel functions that have not started.
        """
        with self._lock:
            self._is_closing = True
            if cancel_futures:
                for task in self._waiting:
                    task.future.cancel()
        self._dispatch()
        if wait:
            self._idle.wait()
            assert self._stopped is not None
            if self._broken is None:
                self._stopped.get()
            else:
                # The error that broke the pool has been raised already.
                self._stopped.exception()

    def _dispatch(self) -> None:
        """Send waiting functions to idle processes, and stop the processes at the end."""
        while (given := self._next()) is not None:
            task, rank = given
            try:
                call = self._run._call_rank(rank, (task.function, task.args, task.kwargs), {})
            except BaseException as error:
                self._release(rank)
                task.future.set_exception(error)
                continue
            self._watch(call, partial(self._end, task, rank, call))

    def _watch(self, call: Future[Any], callback: Callable[[], None]) -> None:
        """Run a function on the event loop of this process when a call is done."""
        thread = loop_thread()
        if not isinstance(call, CallFuture):
            call.add_done_callback(lambda _: callback())
        elif threading.current_thread() is thread.thread:
            waker_of(thread.loop, call._engine).watch(call._reply, callback)
        else:
            thread.call(self._watch, call, callback)

    def _next(self) -> tuple[_Task, int] | None:
        with self._lock:
            while self._waiting:
                rank = self._slots.take()
                if rank is None:
                    return None
                task = self._waiting.popleft()
                # A function that is repeated is running already.
                if task.future.running() or task.future.set_running_or_notify_cancel():
                    self._running += 1
                    return task, rank
                self._slots.release(rank)
            if self._is_closing and not self._running and self._stopped is None:
                self._stopped = self._procs.stop()
                self._idle.set()
            return None

    def _release(self, rank: int) -> None:
        with self._lock:
            self._running -= 1
            self._slots.release(rank)

    def _end(self, task: _Task, rank: int, call: Future[Any]) -> None:
        """Pass on the outcome of a function; called on the event loop of this process."""
        error = call.exception()
        self._release(rank)
        if isinstance(error, (ProcDied, HostDied)):
            self._lose(rank, error)
        elif isinstance(error, (ActorFailed, MeshStopped)):
            # The initializer has failed, or the hosts are gone.
            self._close_broken(error)
        if error is None:
            task.future.set_result(call.get())
        elif task.retries and isinstance(error, (ProcDied, HostDied)):
            task.retries -= 1
            with self._lock:
                self._waiting.appendleft(task)
        else:
            task.future.set_exception(error if self._broken is None else _broken(self._broken))
        self._dispatch()

    def _start(self, initialized: Future[Any]) -> None:
        """Break the pool if its initializer has raised an exception."""
        error = initialized.exception()
        if isinstance(error, ActorFailed):
            self._close_broken(error)

    def _lose(self, rank: int, error: BaseException) -> None:
        self._last_error = error
        with self._lock:
            self._slots.lose(rank)
        if not self._is_recovering:
            self._is_recovering = True
            self._recover()

    def _recover(self) -> None:
        """Take back restarted processes; called on the event loop until none is missing."""
        if self._stopped is not None:
            return
        with self._lock:
            delay_s = self._slots.recover()
            is_dead = self._slots.is_dead
        if is_dead:
            self._close_broken(self._last_error)
        if delay_s is None or is_dead:
            self._is_recovering = False
        else:
            loop_thread().loop.call_later(delay_s, self._recover)
        self._dispatch()

    def _close_broken(self, error: BaseException | None) -> None:
        """Stop the processes and fail all waiting functions, because no process works."""
        cause = error or RuntimeError("the processes were stopped")
        with self._lock:
            self._broken = self._broken or cause
            waiting, self._waiting = list(self._waiting), deque()
            if self._stopped is None:
                self._stopped = self._procs.stop()
                self._idle.set()
        for task in waiting:
            if task.future.running() or task.future.set_running_or_notify_cancel():
                task.future.set_exception(_broken(cause))


def _broken(cause: BaseException) -> BrokenProcessPool:
    error = BrokenProcessPool("the processes of the pool died or could not start")
    error.__cause__ = cause
    return error


def _chunks(items: Iterator[Any], size: int) -> Iterator[tuple[Any, ...]]:
    while chunk := tuple(islice(items, size)):
        yield chunk
