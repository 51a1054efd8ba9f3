"""Endpoints: how they are declared, looked up and called."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import (
    Accumulator,
    Actor,
    ActorError,
    Channel,
    MeshError,
    NoReply,
    Port,
    Unpicklable,
    ValueMesh,
    as_endpoint,
    concurrent_endpoint,
    current_rank,
    endpoint,
    patch_actor,
)
from mesh_core.compat import send

if TYPE_CHECKING:
    from mesh_core import ProcMesh


class Calculator(Actor):
    """Plain endpoints with all kinds of signatures."""

    def __init__(self, start: int = 0, *, step: int = 1) -> None:
        self.value = start
        self.step = step
        self.seen: list[Any] = []

    @endpoint
    def add(self, n: int, times: int = 1) -> int:
        """Add to the value."""
        self.value += n * times * self.step
        return self.value

    @endpoint
    def get(self) -> int:
        return self.value

    @endpoint
    def echo(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return args, kwargs

    @endpoint
    def keyword_only(self, *, name: str) -> str:
        return name

    @endpoint
    def positional_only(self, a: int, b: int = 2, /) -> int:
        return a * 10 + b

    @endpoint
    def add_twice(self, n: int) -> int:
        self.add(n)
        return self.add(n)

    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def fail_on(self, rank: int) -> int:
        if current_rank().rank == rank:
            raise ValueError(f"rank {rank} is bad")
        return current_rank().rank

    @endpoint
    def note(self, what: Any) -> None:
        self.seen.append(what)

    @endpoint
    def notes(self) -> list[Any]:
        return self.seen

    @endpoint
    def unpicklable(self) -> Any:
        return threading.Lock()

    def plain(self, n: int) -> int:
        return self.value + n

    @staticmethod
    def static(n: int) -> int:
        return n * 2

    constant = 17


class Mixed(Actor):
    """Plain, async and concurrent endpoints in one class, and an async `__init__`."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.latch: asyncio.Event | None = None

    @endpoint
    def plain(self, n: int) -> int:
        self.log.append(f"plain {n}")
        return n + 1

    @endpoint
    async def slow(self, n: int) -> int:
        self.log.append(f"slow {n} begins")
        await asyncio.sleep(0)
        self.log.append(f"slow {n} ends")
        return n + 2

    @concurrent_endpoint
    async def wait_for_gate(self, n: int) -> int:
        self.log.append(f"latch {n}")
        if self.latch is None:
            self.latch = asyncio.Event()
        await self.latch.wait()
        return n

    @endpoint
    async def open_gate(self) -> None:
        if self.latch is None:
            self.latch = asyncio.Event()
        self.latch.set()

    @endpoint
    async def both(self, n: int) -> int:
        return self.plain(n) + await self.slow(n)

    @endpoint
    def read_log(self) -> list[str]:
        return self.log

    async def undecorated(self, n: int) -> int:
        return n * 3


class StartsAsync(Actor):
    async def __init__(self, value: int) -> None:  # type: ignore[misc]
        await asyncio.sleep(0)
        self.value = value

    @endpoint
    def get(self) -> int:
        return self.value


class Ported(Actor):
    """Endpoints that reply on a port."""

    def __init__(self) -> None:
        self.kept: list[Port[Any]] = []

    @endpoint(explicit_response_port=True)
    def at_once(self, port: Port[int], n: int) -> None:
        port.send(n + 1)

    @endpoint(explicit_response_port=True)
    def with_error(self, port: Port[int]) -> None:
        port.exception(KeyError("from the port"))

    @endpoint(explicit_response_port=True)
    def keep(self, port: Port[Any]) -> None:
        self.kept.append(port)

    @endpoint
    def answer_kept(self, value: Any) -> int:
        for port in self.kept:
            port.send(value)
        count = len(self.kept)
        self.kept.clear()
        return count

    @endpoint(explicit_response_port=True)
    def twice(self, port: Port[int]) -> None:
        port.send(1)
        port.send(2)

    @endpoint(explicit_response_port=True)
    def never(self, port: Port[int]) -> None:
        pass

    @endpoint(explicit_response_port=True)
    def from_thread(self, port: Port[str]) -> None:
        threading.Thread(target=lambda: port.send("thread")).start()

    @endpoint(explicit_response_port=True)
    def hand_on(self, port: Port[Any], other: Any) -> None:
        other.answer_for.broadcast(port)

    @endpoint
    def answer_for(self, port: Port[Any]) -> None:
        port.send(f"from {current_rank().rank}")

    @endpoint(explicit_response_port=True)
    async def concurrently(self, port: Port[int], n: int) -> None:
        await asyncio.sleep(0)
        port.send(n)

    def undecorated(self, port: Port[int], n: int) -> None:
        port.send(n * 2)


def test_call_returns_one_result_per_rank_in_mesh_order(procs: ProcMesh) -> None:
    mesh = procs.spawn("calc", Calculator, 10, step=2)
    result = mesh.rank.call().get()
    assert isinstance(result, ValueMesh)
    assert [(dict(point), value) for point, value in result] == [({"gpus": i}, i) for i in range(4)]
    assert list(mesh.add.call(3).get().values()) == [16] * 4


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, "two", None), {}), ((), {"a": [1], "b": {2}}), (({1: (2, 3)},), {"x": b"y"})],
)
def test_arguments_and_results_arrive_unchanged(
    proc: ProcMesh, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    mesh = proc.spawn("calc", Calculator)
    assert mesh.echo.call_one(*args, **kwargs).get() == (args, kwargs)


def test_defaults_keywords_and_positional_only_arguments_bind_as_in_a_call(proc: ProcMesh) -> None:
    mesh = proc.spawn("calc", Calculator)
    assert mesh.add.call_one(2, times=3).get() == 6
    assert mesh.add.call_one(n=1).get() == 7
    assert mesh.keyword_only.call_one(name="x").get() == "x"
    assert mesh.positional_only.call_one(1).get() == 12
    assert mesh.positional_only.call_one(1, 5).get() == 15


@pytest.mark.parametrize("verb", ["call", "call_one", "choose", "broadcast", "stream"])
def test_wrong_arguments_raise_at_the_call_and_nothing_is_sent(proc: ProcMesh, verb: str) -> None:
    mesh = proc.spawn("calc", Calculator)
    for args, kwargs in [((), {}), ((1, 2, 3), {}), ((1,), {"other": 1})]:
        with pytest.raises(TypeError, match="add"):
            getattr(mesh.add, verb)(*args, **kwargs)
    with pytest.raises(TypeError):
        mesh.keyword_only.call("positional")  # type: ignore[call-arg]
    assert mesh.get.call_one().get() == 0


@pytest.mark.parametrize("verb", ["call", "call_one", "choose", "broadcast", "stream"])
def test_unpicklable_argument_raises_at_the_call_and_nothing_is_sent(
    proc: ProcMesh, verb: str
) -> None:
    mesh = proc.spawn("calc", Calculator)
    with pytest.raises(TypeError) as raised:
        getattr(mesh.note, verb)({"deep": [threading.Lock()]})
    assert isinstance(raised.value, Unpicklable)
    assert mesh.notes.call_one().get() == []


def test_an_unpicklable_result_raises_in_the_caller_and_the_actor_survives(proc: ProcMesh) -> None:
    mesh = proc.spawn("calc", Calculator)
    with pytest.raises(Unpicklable):
        mesh.unpicklable.call_one().get()
    assert mesh.get.call_one().get() == 0


def test_call_one_needs_exactly_one_actor(procs: ProcMesh) -> None:
    mesh = procs.spawn("calc", Calculator)
    with pytest.raises(
        ValueError, match=r"has 4 \{gpus: 4\}: select one, as in mesh.slice\(gpus=0\)"
    ):
        mesh.get.call_one()
    assert mesh.slice(gpus=2).get.call_one().get() == 0
    assert mesh.slice(gpus=slice(1, 2)).get.call_one().get() == 0


def test_choose_picks_one_actor_and_eventually_each_of_them(procs: ProcMesh) -> None:
    mesh = procs.spawn("calc", Calculator)
    futures = [mesh.rank.choose() for _ in range(100)]
    assert {future.get() for future in futures} == {0, 1, 2, 3}


def test_broadcast_reaches_every_actor_before_later_calls(procs: ProcMesh) -> None:
    mesh = procs.spawn("calc", Calculator)
    assert mesh.note.broadcast("b") is None
    assert list(mesh.notes.call().get().values()) == [["b"]] * 4


def test_stream_yields_futures_as_replies_arrive_with_their_ranks(procs: ProcMesh) -> None:
    mesh = procs.spawn("calc", Calculator)
    stream = mesh.rank.stream()
    assert len(stream) == 4
    assert sorted(future.get() for future in stream) == [0, 1, 2, 3]
    pairs = [(point.rank, future.get()) for point, future in mesh.rank.stream().with_ranks()]
    assert sorted(pairs) == [(i, i) for i in range(4)]


def test_in_a_stream_only_the_failing_rank_has_an_error(procs: ProcMesh) -> None:
    mesh = procs.spawn("calc", Calculator)
    outcomes = {}
    for point, future in mesh.fail_on.stream(2).with_ranks():
        outcomes[point["gpus"]] = future.exception() or future.get()
    assert isinstance(outcomes.pop(2), ValueError)
    assert outcomes == {0: 0, 1: 1, 3: 3}


def test_accumulator_folds_all_replies(procs: ProcMesh) -> None:
    mesh = procs.spawn("calc", Calculator)
    total = Accumulator(mesh.rank, 100, lambda so_far, rank: so_far + rank)
    assert total.accumulate().get() == 106
    assert total.accumulate().get() == 106


def test_accumulator_raises_exceptions_of_actors_and_of_the_fold(procs: ProcMesh) -> None:
    mesh = procs.spawn("calc", Calculator)
    with pytest.raises(ValueError, match="rank 1 is bad"):
        Accumulator(mesh.fail_on, 0, lambda a, b: a + b).accumulate(1).get()
    with pytest.raises(ZeroDivisionError):
        Accumulator(mesh.rank, 0, lambda a, b: a // b).accumulate().get()


def test_return_exceptions_returns_results_and_exceptions_by_rank(procs: ProcMesh) -> None:
    mesh = procs.spawn("calc", Calculator)
    result = mesh.fail_on.options(return_exceptions=True).call(1).get()
    values = list(result.values())
    assert [values[0], values[2], values[3]] == [0, 2, 3]
    assert isinstance(values[1], ValueError)
    assert isinstance(values[1], ActorError)


class Parser(Actor):
    @endpoint
    def parse(self, text: str) -> int:
        return int(text)


def test_the_same_except_clause_catches_one_or_many_failing_ranks(procs: ProcMesh) -> None:
    mesh = procs.spawn("parser", Parser)
    for ranks in (1, 4):
        with pytest.raises(ValueError, match="invalid literal") as raised:
            mesh.slice(gpus=slice(0, ranks)).parse.call("nope").get()
        assert isinstance(raised.value, ActorError)
        assert [point.rank for point, _ in raised.value.failures] == list(range(ranks))
        assert all(isinstance(error, ValueError) for _, error in raised.value.failures)


def test_an_endpoint_is_a_plain_method_inside_its_own_actor(proc: ProcMesh) -> None:
    assert proc.spawn("calc", Calculator).add_twice.call_one(5).get() == 10
    assert proc.spawn("mixed", Mixed).both.call_one(1).get() == 5


def test_one_class_may_mix_plain_async_and_concurrent_endpoints(proc: ProcMesh) -> None:
    mesh = proc.spawn("mixed", Mixed)
    waiting = [mesh.wait_for_gate.call_one(i) for i in range(3)]
    others = [mesh.slow.call_one(1), mesh.plain.call_one(2), mesh.slow.call_one(3)]
    assert [future.get() for future in others] == [3, 3, 5]
    assert not any(future.done() for future in waiting)
    mesh.open_gate.call_one().get()
    assert [future.get() for future in waiting] == [0, 1, 2]
    log = mesh.read_log.call_one().get()
    assert [line for line in log if not line.startswith("latch")] == [
        "slow 1 begins", "slow 1 ends", "plain 2", "slow 3 begins", "slow 3 ends",
    ]  # fmt: skip
    assert [line for line in log if line.startswith("latch")] == ["latch 0", "latch 1", "latch 2"]


def test_concurrent_endpoint_requires_an_async_method_that_is_not_an_endpoint() -> None:
    with pytest.raises(ValueError, match="must be 'async def'"):

        @concurrent_endpoint
        def plain(self: Any) -> None: ...

    with pytest.raises(ValueError, match="is already an endpoint"):

        @concurrent_endpoint
        @endpoint
        async def twice(self: Any) -> None: ...


def test_init_may_be_async(procs: ProcMesh) -> None:
    mesh = procs.spawn("async", StartsAsync, 7)
    assert list(mesh.get.call().get().values()) == [7] * 4


def test_spawn_checks_the_class_and_its_arguments_at_once(procs: ProcMesh) -> None:
    with pytest.raises(ValueError, match="Actor"):
        procs.spawn("x", dict)
    with pytest.raises(TypeError):
        procs.spawn("x", Calculator, 1, 2, 3)
    with pytest.raises(TypeError):
        procs.spawn("x", Parser, 1)
    with pytest.raises(TypeError):
        procs.spawn("x", Calculator, threading.Lock())

    class Collides(Actor):
        @endpoint
        def slice(self) -> None: ...

    with pytest.raises(ValueError, match="'slice'"):
        procs.spawn("x", Collides)


def test_the_error_of_a_direct_call_says_how_to_call_an_endpoint(proc: ProcMesh) -> None:
    mesh = proc.spawn("calc", Calculator)
    with pytest.raises(TypeError, match=r"get\.call_one\(\.\.\.\)"):
        mesh.get()
    with pytest.raises(RuntimeError, match="as_endpoint"):
        mesh.plain(1)
    with pytest.raises(RuntimeError, match="as_endpoint"):
        mesh.plain.call(1)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = mesh.nothing_like_it


def test_as_endpoint_calls_undecorated_methods(proc: ProcMesh) -> None:
    mesh = proc.spawn("calc", Calculator, 5)
    assert as_endpoint(mesh.plain).call_one(2).get() == 7
    assert as_endpoint(mesh.static).call_one(4).get() == 8
    mixed = proc.spawn("mixed", Mixed)
    assert as_endpoint(mixed.undecorated).call_one(4).get() == 12
    ported = proc.spawn("ported", Ported)
    doubled = as_endpoint(ported.undecorated, explicit_response_port=True)
    assert doubled.call_one(4).get() == 8
    for wrong in (mesh.get, "plain", None):
        with pytest.raises(ValueError, match="as_endpoint"):
            as_endpoint(wrong)


def test_endpoints_are_inherited_and_can_be_overridden(proc: ProcMesh) -> None:
    class Derived(Calculator):
        @endpoint
        def get(self) -> int:
            return -super().get()

        @endpoint
        async def more(self) -> str:
            return "more"

    mesh = proc.spawn("derived", Derived, 3)
    assert mesh.get.call_one().get() == -3
    assert mesh.add.call_one(1).get() == 4
    assert mesh.more.call_one().get() == "more"


def test_endpoint_can_wrap_another_decorator(proc: ProcMesh) -> None:
    def plus_one(method: Any) -> Any:
        @functools.wraps(method)
        def wrapped(self: Any, *args: Any) -> Any:
            return method(self, *args) + 1

        return wrapped

    class Wrapped(Actor):
        @endpoint
        @plus_one
        def double(self, n: int) -> int:
            return n * 2

    mesh = proc.spawn("wrapped", Wrapped)
    assert mesh.double.call_one(3).get() == 7
    with pytest.raises(TypeError):
        mesh.double.call_one()


def test_an_explicit_port_can_reply_immediately_later_or_with_an_error(procs: ProcMesh) -> None:
    mesh = procs.spawn("ported", Ported)
    assert list(mesh.at_once.call(4).get().values()) == [5] * 4
    with pytest.raises(KeyError, match="from the port"):
        mesh.with_error.call().get()
    kept = mesh.keep.call()
    assert list(mesh.answer_kept.call("later").get().values()) == [1] * 4
    assert list(kept.get().values()) == ["later"] * 4


def test_a_thread_a_task_or_another_actor_can_reply_on_an_explicit_port(
    procs: ProcMesh,
) -> None:
    mesh = procs.spawn("ported", Ported)
    first, second = mesh.slice(gpus=0), mesh.slice(gpus=1)
    assert first.from_thread.call_one().get() == "thread"
    assert first.concurrently.call_one(6).get() == 6
    assert first.hand_on.call_one(second).get() == "from 0"


def test_a_second_reply_on_an_explicit_port_is_dropped_and_the_actor_survives(
    proc: ProcMesh,
) -> None:
    mesh = proc.spawn("ported", Ported)
    assert mesh.twice.call_one().get() == 1
    assert list(mesh.twice.call().get().values()) == [1]
    assert mesh.at_once.call_one(1).get() == 2


def test_an_explicit_port_dropped_without_a_reply_raises_no_reply(proc: ProcMesh) -> None:
    mesh = proc.spawn("ported", Ported)
    with pytest.raises(NoReply, match="never"):
        mesh.never.call_one().get()


def test_an_explicit_port_endpoint_accepts_broadcasts(proc: ProcMesh) -> None:
    mesh = proc.spawn("ported", Ported)
    mesh.at_once.broadcast(1)
    mesh.never.broadcast()
    assert mesh.at_once.call_one(1).get() == 2


def test_send_delivers_the_replies_of_all_actors_to_a_channel(procs: ProcMesh) -> None:
    mesh = procs.spawn("calc", Calculator)
    port, receiver = Channel.open_ranked()
    send(mesh.rank, (), {}, port)
    assert sorted(receiver.recv().get() for _ in range(4)) == [(i, i) for i in range(4)]
    send(mesh.fail_on, (3,), {}, port=port)
    outcomes = [receiver.recv() for _ in range(4)]
    errors = [error for future in outcomes if (error := future.exception())]
    assert len(errors) == 1
    assert isinstance(errors[0], ValueError)
    send(mesh.rank, (), {}, port, selection="choose")
    assert receiver.recv().get()[1] in range(4)
    send(mesh.note, ("sent",), {})
    assert list(mesh.notes.call().get().values()) == [["sent"]] * 4
    with pytest.raises(ValueError, match="selection"):
        send(mesh.rank, (), {}, port, selection="some")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        send(mesh.rank, (1,), {}, port)


def test_both_replies_on_an_explicit_port_arrive_in_the_channel(proc: ProcMesh) -> None:
    mesh = proc.spawn("ported", Ported)
    port, receiver = Channel.open()
    send(mesh.twice, (), {}, port)
    assert [receiver.recv().get(), receiver.recv().get()] == [1, 2]


def test_every_slice_of_a_mesh_can_be_called(procs: ProcMesh) -> None:
    grid = procs.split(gpus=("a", "b"), a=2)
    mesh = grid.spawn("calc", Calculator)
    for part, originals in [
        (mesh.slice(a=1), [2, 3]),
        (mesh.slice(b=-1), [1, 3]),
        (mesh.slice(a=slice(None, None, -1), b=0), [2, 0]),
        (mesh.flatten("all").slice(all=[3, 0]), [3, 0]),
        (mesh.flatten("all").slice(all=slice(None, None, 2)), [0, 2]),
    ]:
        where = part.rank.call().get()
        assert list(where.values()) == list(range(len(originals)))
        assert where.extent == part.extent
        placed = as_endpoint(part.plain).call(0).get()
        assert len(placed) == len(originals)


def test_calling_an_endpoint_that_the_actor_does_not_have_is_an_error(proc: ProcMesh) -> None:
    class Newer(Calculator):
        @endpoint
        def unheard_of(self) -> None: ...

    mesh = proc.spawn("calc", Calculator)
    mesh._cls = Newer
    unknown = mesh.unheard_of
    with pytest.raises(MeshError, match="no endpoint 'unheard_of'"):
        unknown.call_one().get()


class MockedParser(Parser):
    @endpoint
    def parse(self, text: str) -> int:
        return 1234


def test_patch_actor_spawns_the_mock_inside_the_block(proc: ProcMesh) -> None:
    with patch_actor(Parser, MockedParser):
        assert proc.spawn("parser", Parser).parse.call_one("7").get() == 1234
    assert proc.spawn("parser", Parser).parse.call_one("7").get() == 7


class Odd(Exception):
    """Contains a value that cannot be pickled, and has a custom `__init__`."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.lock = threading.Lock()


class Raises(Actor):
    @endpoint
    def odd(self) -> None:
        raise Odd(7, reason="so")

    @endpoint
    async def local(self) -> None:
        class Local(ValueError):
            pass

        raise Local("from a function")

    @endpoint
    def huge(self) -> None:
        raise ValueError("x" * 10_000_000)

    @endpoint
    def alive(self) -> bool:
        return True


def test_exceptions_that_are_hard_to_serialize_still_reach_the_caller(proc: ProcMesh) -> None:
    mesh = proc.spawn("raises", Raises)
    with pytest.raises(Odd, match="7: so") as raised:
        mesh.odd.call_one().get()
    assert raised.value.code == 7
    with pytest.raises(ValueError, match="from a function"):
        mesh.local.call_one().get()
    with pytest.raises(ValueError, match="xxx"):
        mesh.huge.call_one().get()
    assert mesh.alive.call_one().get()


def test_an_argument_that_the_actor_cannot_unpickle_is_an_error_of_the_call(proc: ProcMesh) -> None:
    class Unreadable:
        def __reduce__(self) -> Any:
            return int, ("not a number",)

    mesh = proc.spawn("calc", Calculator)
    with pytest.raises(ValueError, match="not a number"):
        mesh.note.call_one(Unreadable()).get()
    assert mesh.get.call_one().get() == 0


def test_a_result_that_the_caller_cannot_unpickle_is_an_error_of_the_call(proc: ProcMesh) -> None:
    class Unreadable:
        def __reduce__(self) -> Any:
            return int, ("not a number",)

    class Gives(Actor):
        @endpoint
        def it(self) -> Any:
            return Unreadable()

    mesh = proc.spawn("gives", Gives)
    future = mesh.it.call_one()
    for _ in range(2):
        with pytest.raises(ValueError, match="not a number"):
            future.get()
