"""Reduction of the results of a mesh, near its actors.

The first process of each host calls the actors of its host and combines their results, so that each
host sends one value. If a mesh is on many hosts, the values are combined on the way along a tree of
these processes.
"""

from __future__ import annotations

import threading
from _pickle import PickleBuffer
from functools import reduce
from typing import Any, NamedTuple, TypeVar

from mesh_core._calls.coroutine_future import run_async
from mesh_core._calls.event_loop import load_asyncio, loop_thread
from mesh_core._calls.future import _VALUE, CallFuture
from mesh_core._calls.own_thread import run_beside
from mesh_core._configuration.config import effective
from mesh_core._core import Targets
from mesh_core._errors import join_failures
from mesh_core._runtime.open_message import OpenMessage
from mesh_core._runtime.runtime import value_of
from mesh_core._serialization.pickler import decode, encode_value
from mesh_core._serialization.remote_error import encode_exception
from mesh_core._serialization.wire import RAISED
from mesh_core._shapes.shape import Extent, Point
from mesh_core._supervision.failure import error_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

    from mesh_core._calls.endpoint import Endpoint
    from mesh_core._calls.future import Future
    from mesh_core._core import Message
    from mesh_core._runtime.runtime import Runtime

    Combine = Callable[[Any, Any], Any]

__all__ = ["cancel_reduction", "reduce_call", "serve_reduction"]

R = TypeVar("R")


class _Part(NamedTuple):
    """The combined results of some ranks, or their failures.

    Attributes:
        first: The first of the ranks.
        value: The combined value.
        failures: The failed ranks, each with the fault code, the body and the process of its reply.
    """

    first: int
    value: Any
    failures: list[tuple[int, int, bytes, int]]


class _Request(NamedTuple):
    """A request to the first process of a host.

    Attributes:
        endpoint: The endpoint to call.
        timeout: The deadline of the calls in seconds; None for the default.
        combine: The function that combines two results.
        args: The positional arguments.
        kwargs: The keyword arguments.
        branches: For each receiver of the request the ranks of its hosts, its own host first.
    """

    endpoint: Endpoint[..., Any]
    timeout: float | None
    combine: Combine
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    branches: list[list[list[int]]]


class _RanksFuture(CallFuture[list[_Part]]):
    """The results of some ranks, which this process has called itself."""

    __slots__ = ("_combine", "_first")

    def __init__(
        self, reply: int, endpoint: Endpoint[..., Any], combine: Combine, first: int
    ) -> None:
        super().__init__(reply, endpoint)
        self._combine = combine
        self._first = first

    def _settle_with(self, answers: list[Message]) -> None:
        answers.sort(key=lambda message: message.rank)
        failures = [(m.rank, m.code, m.body, m.from_proc) for m in answers if m.code]
        value = None if failures else reduce(self._combine, map(value_of, answers))
        self._settle(_VALUE, [_Part(self._first, value, failures)])


class _BranchesFuture(CallFuture[list[_Part]]):
    """The parts that the first processes of other hosts return."""

    __slots__ = ("_firsts",)

    def __init__(self, reply: int, endpoint: Endpoint[..., Any], firsts: list[int]) -> None:
        super().__init__(reply, endpoint)
        self._firsts = firsts

    def _settle_with(self, answers: list[Message]) -> None:
        self._settle(_VALUE, [self._part_of(message) for message in answers])

    def _part_of(self, message: Message) -> _Part:
        if message.code == 0:
            return _Part(*value_of(message))
        # The process has died, or `combine` raised an exception there.
        first = self._firsts[message.rank]
        return _Part(first, None, [(first, message.code, message.body, message.from_proc)])


def reduce_call(
    endpoint: Endpoint[..., R],
    combine: Callable[[R, R], R],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Future[R]:
    """Call every actor, and return a future of the combined results; see `Endpoint.reduce`."""
    hosts: dict[int, list[int]] = {}
    mesh = endpoint._mesh
    for index in range(len(mesh)):
        hosts.setdefault(mesh._proc_of(index) >> 32, []).append(index)
    timeout = endpoint._options.timeout
    request = _Request(endpoint, timeout, combine, args, kwargs, [])
    # Everything is sent here, so that arguments that cannot be sent are an error of the caller.
    futures = _start(request, list(hosts.values()))

    async def outcome() -> R:
        try:
            # `combine` may take long, and must not block the event loop.
            part = await run_beside(lambda: _combined(futures, combine))
        except load_asyncio().CancelledError:
            _cancel(futures)
            raise
        if part.failures:
            raise _error_of(endpoint, part.failures)
        return part.value  # type: ignore[no-any-return]

    return run_async(loop_thread(), outcome())


class _Served:
    """A reduction that this process serves for another one.

    The thread that serves it publishes its calls before it reads `is_cancelled`. The thread that
    cancels it sets `is_cancelled` before it reads the calls. Therefore one of them cancels the
    calls.
    """

    def __init__(self) -> None:
        self.futures: list[CallFuture[list[_Part]]] = []
        self.is_cancelled = False


# The reductions that this process serves, by the process and reply port of their callers.
_served: dict[tuple[int, int], _Served] = {}


def serve_reduction(
    runtime: Runtime, message: Message, body: bytes, buffers: Sequence[Buffer]
) -> None:
    """Reply with the combined results of some hosts, on a separate thread."""
    caller = message.from_proc, message.from_port
    served = _served[caller] = _Served()

    def serve() -> None:
        try:
            request = _Request(*decode(body, buffers))
            if request.timeout is not None:
                endpoint = request.endpoint.options(timeout=request.timeout)
                request = request._replace(endpoint=endpoint)
            served.futures = _start(request, request.branches[message.rank])
            if served.is_cancelled:
                _cancel(served.futures)
            value = tuple(_combined(served.futures, request.combine))
            packed, large = encode_value(value, effective().segment_threshold_bytes, "result")
            runtime.engine.reply(message, 0, packed, large)
        except BaseException as error:
            runtime.engine.reply(message, RAISED, encode_exception(error))
        finally:
            del _served[caller]

    threading.Thread(target=serve, name="mesh-reduce", daemon=True).start()


def cancel_reduction(message: Message) -> None:
    """Cancel the calls of a reduction that its caller has abandoned."""
    served = _served.get((message.from_proc, message.from_port))
    if served is not None:
        served.is_cancelled = True
        _cancel(served.futures)


def _cancel(futures: list[CallFuture[list[_Part]]]) -> None:
    for future in futures:
        future.cancel()


def _start(request: _Request, hosts: list[list[int]]) -> list[CallFuture[list[_Part]]]:
    """Call the actors of this host, and the first process of each branch of the other hosts."""
    endpoint, mesh = request.endpoint, request.endpoint._mesh
    current = mesh._runtime
    here = [ranks for ranks in hosts if mesh._proc_of(ranks[0]) >> 32 == current.me >> 32]
    others = [ranks for ranks in hosts if ranks not in here]
    futures: list[CallFuture[list[_Part]]] = []
    if len(hosts) == 1 and not here:
        # One host alone sends its results to the caller, which combines them.
        here, others = hosts, []
    for ranks in here:
        targets = Targets([(mesh._proc_of(rank), rank) for rank in ranks])
        reply = endpoint._call(targets, request.args, request.kwargs)
        futures.append(_RanksFuture(reply, endpoint, request.combine, ranks[0]))
    if others:
        branches = _split(others, effective().cast_fanout)
        firsts = [branch[0][0] for branch in branches]
        targets = Targets([(mesh._proc_of(first), at) for at, first in enumerate(firsts)])
        threshold = effective().segment_threshold_bytes
        body, buffers = encode_value(tuple(request._replace(branches=branches)), threshold)
        large = [PickleBuffer(one) for one in buffers]
        reply = current.call_agents(targets, "reduce", body, large, timeout=request.timeout)
        futures.append(_BranchesFuture(reply, endpoint, firsts))
    return futures


def _split(hosts: list[list[int]], count: int) -> list[list[list[int]]]:
    """Divide hosts into at most `count` branches of about the same number, in order."""
    size = -(-len(hosts) // count)
    return [hosts[at : at + size] for at in range(0, len(hosts), size)]


def _combined(futures: list[CallFuture[list[_Part]]], combine: Combine) -> _Part:
    """Wait for all parts and combine them in the order of their ranks."""
    errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None:
            raise error
    parts = [part for future in futures for part in future.get()]
    parts.sort(key=lambda part: part.first)
    failures = sorted(failure for part in parts for failure in part.failures)
    value = None if failures else reduce(combine, (part.value for part in parts))
    return _Part(parts[0].first, value, failures)


def _error_of(
    endpoint: Endpoint[..., Any], failures: list[tuple[int, int, bytes, int]]
) -> BaseException:
    """Create the exception for ranks that have failed."""
    region = endpoint._mesh._region
    extent = Extent(region.labels, region.sizes)
    errors = []
    for rank, code, body, proc in failures:
        reply: Any = OpenMessage(body=body, opened=(), code=code, rank=rank, from_proc=proc)
        errors.append((Point(rank, extent), error_of(reply, endpoint)))
    return join_failures(errors)
