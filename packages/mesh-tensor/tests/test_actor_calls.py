"""Actors that receive the tensors of their own processes, in program order."""

import pickle
import threading
from typing import Any

import pytest
import torch

import mesh_tensor as mt
from mesh_core import (
    Actor,
    ActorFailed,
    DeadlineExceeded,
    Port,
    ProcMesh,
    Unpicklable,
    as_endpoint,
    endpoint,
)
from mesh_core.spi import current_process
from mesh_tensor._worker import actor_calls


class Holder(Actor):
    def __init__(self) -> None:
        self.kept: torch.Tensor | None = None

    @endpoint
    def keep(self, x: torch.Tensor) -> list[float]:
        assert type(x) is torch.Tensor
        self.kept = x
        return x.tolist()  # type: ignore[no-any-return]

    @endpoint
    def look(self) -> list[float]:
        assert self.kept is not None
        return self.kept.tolist()  # type: ignore[no-any-return]

    @endpoint(propagate=lambda x, by: torch.empty_like(x))
    def scaled(self, x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by

    @endpoint(propagate=lambda x: x.add_(1))
    def bump(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)

    @endpoint(propagate=torch.empty_like)
    def fail(self, x: torch.Tensor) -> torch.Tensor:
        raise LookupError("nothing is kept")

    @endpoint
    def give(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @endpoint(explicit_response_port=True)
    def answer(self, port: Port[float], x: torch.Tensor) -> None:
        port.send(x.sum().item())

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        return -x

    @endpoint
    def shape_of(self, mesh: Any, x: torch.Tensor) -> Any:
        return mesh.mesh_dim_names, mesh.get_local_rank("dp")


_open = threading.Event()


class Busy(Actor):
    @endpoint
    def hold(self) -> None:
        _open.wait()

    @endpoint
    def keep(self, x: torch.Tensor) -> None: ...


class Opener(Actor):
    @endpoint
    def open(self) -> None:
        _open.set()


class Waiter(Actor):
    @endpoint
    async def total(self, x: torch.Tensor) -> float:
        return float(x.sum())


SIZES = {"dp": 2}


#: Released whenever this process has found that an actor is still being loaded.
LOOKS = threading.Semaphore(0)


class ObservedProcess:
    """The current process, which releases `LOOKS` at each query whether an actor is loaded."""

    local_actor = staticmethod(current_process.local_actor)

    @staticmethod
    def is_actor_spawning(port: int) -> bool:
        is_spawning = current_process.is_actor_spawning(port)
        LOOKS.release()
        return is_spawning


class Onlooker(Actor):
    def __init__(self) -> None:
        actor_calls.current_process = ObservedProcess()


def _import_slowly() -> None:
    for _ in range(3):
        LOOKS.acquire()


def _import_never() -> None:
    raise ImportError("no such module")


class ImportedSlowly:
    """Slow to unpickle in another process, like a class of a large module."""

    def __reduce__(self) -> Any:
        return _import_slowly, ()


class ImportedNever:
    def __reduce__(self) -> Any:
        return _import_never, ()


class Late(Actor):
    def __init__(self, what: object) -> None:
        pass

    @endpoint
    def total(self, x: torch.Tensor) -> float:
        return float(x.sum())

    @endpoint(propagate=torch.empty_like)
    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@pytest.fixture(scope="module")
def holders(procs: ProcMesh) -> Any:
    return procs.spawn("holders", Holder)


class TestCalls:
    def test_each_actor_gets_the_tensor_of_its_process(self, mesh: Any, holders: Any) -> None:
        ranks = mesh.rank("dp") + torch.ones(1)
        assert list(holders.keep.call(ranks).get().values()) == [[1], [2]]
        # The actor holds the tensor itself, not a copy.
        ranks.mul_(10)
        mt.inspect(ranks)
        assert list(holders.look.call().get().values()) == [[10], [20]]

    def test_calls_run_in_program_order(self, mesh: Any, holders: Any) -> None:
        x = torch.zeros(1)
        answers = []
        for _ in range(20):
            answers.append(holders.keep.call(x))
            x.add_(1)
        assert [one.get().slice(dp=1).item() for one in answers] == [[n] for n in range(20)]
        given = holders.give.call(x)
        x.add_(1)
        assert given.get().slice(dp=0).item().tolist() == [20]

    def test_every_endpoint_method_accepts_tensors(self, mesh: Any, holders: Any) -> None:
        x = torch.ones(1)
        assert holders.keep.choose(x).get() == [1]
        assert sorted(one.get() for one in holders.keep.stream(x)) == [[1], [1]]
        holders.keep.broadcast(x + 1)
        assert list(holders.look.call().get().values()) == [[2], [2]]
        assert list(holders.answer.call(x).get().values()) == [1, 1]
        part = mesh.slice(dp=1)
        with part.activate():
            y = torch.ones(2)
        assert holders.slice(dp=1).keep.call_one(y).get() == [1, 1]

    def test_async_endpoints_and_mesh_arguments_are_supported(
        self, procs: ProcMesh, mesh: Any, holders: Any
    ) -> None:
        waiters = procs.spawn("waiters", Waiter)
        x = torch.ones(3)
        both = [waiters.total.call(x), holders.keep.call(x), waiters.total.call(x + 1)]
        assert [one.get().slice(dp=0).item() for one in both] == [3, [1, 1, 1], 6]
        found = holders.shape_of.call(mesh, x).get()
        assert list(found.values()) == [(("dp",), 0), (("dp",), 1)]

    def test_a_tensor_of_other_processes_is_refused_at_the_call(
        self, mesh: Any, holders: Any
    ) -> None:
        with mesh.slice(dp=1).activate():
            part = torch.ones(1)
        with pytest.raises(mt.WrongMesh, match="keep is called on"):
            holders.keep.call(part)
        with pytest.raises(TypeError, match="argument"):
            holders.keep.call(torch.ones(1), 3)


class TestResults:
    def test_results_stay_in_their_processes(self, mesh: Any, holders: Any) -> None:
        x = torch.ones(2)
        twice = holders.scaled.rref(x, 2.0)
        assert type(twice) is mt.Tensor
        assert mt.inspect(twice + 1).tolist() == [3, 3]
        negative = as_endpoint(holders.plain, propagate=torch.empty_like).rref(twice)
        assert mt.inspect(negative).tolist() == [-2, -2]

    def test_an_in_place_endpoint_returns_its_argument(self, mesh: Any, holders: Any) -> None:
        x = torch.zeros(2)
        assert holders.bump.rref(x) is x
        assert mt.inspect(x).tolist() == [1, 1]

    def test_a_tensor_result_without_a_propagate_rule_is_an_error(
        self, mesh: Any, holders: Any
    ) -> None:
        with pytest.raises(mt.TensorError, match="propagate"):
            holders.give.rref(torch.ones(1))


class TestSpawning:
    def test_a_call_waits_while_the_module_of_the_actor_is_imported(
        self, procs: ProcMesh, mesh: Any
    ) -> None:
        procs.spawn("onlookers", Onlooker).initialized.get()
        late = procs.spawn("late", Late, ImportedSlowly())
        assert list(late.total.call(torch.ones(2)).get().values()) == [2, 2]
        assert mt.inspect(procs.spawn("later", Late, ImportedSlowly()).twice.rref(torch.ones(1)))

    def test_an_actor_that_fails_to_spawn_does_not_block_the_mesh(
        self, procs: ProcMesh, mesh: Any
    ) -> None:
        x = torch.ones(1)
        broken = procs.spawn("broken", Late, ImportedNever())
        broken.total.broadcast(x)
        with pytest.raises(ActorFailed, match="no such module"):
            broken.total.call(x).get()
        with pytest.raises(mt.OpFailed, match="did not serve the call"):
            mt.inspect(broken.twice.rref(x))
        assert mt.inspect(x).item() == 1

    def test_a_tensor_as_a_spawn_argument_is_refused_with_advice(
        self, procs: ProcMesh, mesh: Any
    ) -> None:
        x = torch.ones(2)
        with pytest.raises(Unpicklable, match=r"^argument 'what': .* pass the tensor to an endp"):
            procs.spawn("late", Late, x)
        with pytest.raises(Unpicklable, match=r"^argument 'what'\['w'\]\[0\]: a distributed tens"):
            procs.spawn("late", Late, {"w": [x]})
        with pytest.raises(Unpicklable, match=r"^argument 'what': a device mesh .* an endpoint"):
            procs.spawn("late", Late, what=mesh)


class TestFailures:
    def test_an_exception_in_a_method_is_raised_in_the_program(
        self, mesh: Any, holders: Any
    ) -> None:
        x = torch.ones(2)
        with pytest.raises(LookupError, match="nothing is kept"):
            holders.fail.call(x).get()
        lost = holders.fail.rref(x)
        with pytest.raises(mt.OpFailed, match="nothing is kept") as caught:
            mt.inspect(lost + 1)
        assert "lost = holders.fail.rref(x)" in caught.value.stack
        assert mt.inspect(x).tolist() == [1, 1]

    def test_a_lost_argument_is_detected_before_the_method_runs(
        self, mesh: Any, holders: Any
    ) -> None:
        lost = holders.fail.rref(torch.ones(2))
        with pytest.raises(mt.OpFailed, match="nothing is kept"):
            holders.keep.call(lost).get()

    def test_a_stopped_actor_does_not_block_the_mesh(self, procs: ProcMesh, mesh: Any) -> None:
        doomed = procs.spawn("doomed", Holder)
        doomed.stop().get()
        x = torch.ones(1)
        with pytest.raises(Exception, match="stopped"):
            doomed.keep.call(x).get()
        assert mt.inspect(x).item() == 1

    def test_a_call_that_times_out_does_not_block_the_mesh(
        self, procs: ProcMesh, mesh: Any
    ) -> None:
        busy, operand = procs.spawn("busy", Busy), torch.ones(1)
        held = busy.hold.call()
        with pytest.raises(DeadlineExceeded):
            busy.keep.options(timeout=0.1).call(operand).get()
        assert mt.inspect(operand * 2).item() == 2
        procs.spawn("opener", Opener).open.call().get()
        held.get()

    def test_a_distributed_tensor_cannot_be_pickled(self, mesh: Any, holders: Any) -> None:
        x = torch.ones(1)
        with pytest.raises(TypeError, match="a distributed tensor cannot be pickled"):
            pickle.dumps(x)
