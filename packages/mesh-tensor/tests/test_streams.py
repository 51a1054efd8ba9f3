"""Streams run concurrently, each in order; tensors are passed between them by borrows."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import mesh_tensor as mt
from mesh_core import MeshError, ProcMesh, this_host
from mesh_core.testing import kill_proc
from mesh_tensor import DeviceMesh, Stream, inspect, remote

SIZES = {"dp": 2}

_events: dict[str, threading.Event] = {}
_log: list[str] = []


def _event(name: str) -> threading.Event:
    return _events.setdefault(name, threading.Event())


def _same(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x)


@remote(propagate=_same)
def waits_for(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return the operand once an event is set."""
    if not _event(name).wait(20):
        raise TimeoutError(name)
    return x.clone()


@remote(propagate=_same)
def opens(x: torch.Tensor, name: str) -> torch.Tensor:
    """Set an event, and return the operand."""
    _event(name).set()
    return x.clone()


@remote(propagate="inspect")
def writes(x: torch.Tensor, name: str) -> None:
    """Record that execution has reached this point."""
    _log.append(name)


def log_of(x: Any) -> list[str]:
    """Return the records of the first process."""
    return next(iter(remote(_take_log).call(x).get().values()))


def _take_log(_: torch.Tensor) -> list[str]:
    taken = _log[:]
    _log.clear()
    return taken


@pytest.fixture(scope="module")
def comm(procs: ProcMesh) -> Stream:
    """Another stream, which exists on the processes."""
    comm = Stream("comm")
    with procs.activate(), comm.activate():
        inspect(torch.ones(1))
    return comm


def counted(mesh: DeviceMesh) -> list[dict[str, int]]:
    """Return the numbers of objects that the processes hold."""
    gc.collect()
    inspect(torch.ones(()) + 1)
    mesh._engine.stream.flush()
    return list(mesh._engine._workers.count.call().get().values())


class TestStreams:
    """The assignment of operations to streams."""

    def test_new_tensors_belong_to_the_active_stream(self, mesh: DeviceMesh, comm: Stream) -> None:
        x = torch.ones(2)
        with comm.activate():
            assert mt.get_active_stream() is comm
            assert mt.get_active_mesh() is mesh
            y = torch.ones(2) + mesh.rank("dp") + torch.tensor(1.0)
            z = mt.put(torch.ones(2))
        assert (x.stream, y.stream, z.stream) == (mt.get_active_stream(), comm, comm)  # type: ignore[attr-defined]
        assert y.mesh is mesh  # type: ignore[attr-defined]
        assert inspect(y + z, dp=1).tolist() == [4, 4]
        assert "stream=comm" in repr(y)

    def test_the_active_stream_is_thread_local(self, mesh: DeviceMesh, comm: Stream) -> None:
        seen = []
        with comm.activate():
            thread = threading.Thread(target=lambda: seen.append(mt.get_active_stream()))
            thread.start()
            thread.join()
        assert seen == [mt.get_active_stream()]
        assert mt.get_active_stream() is not comm

    def test_a_mesh_activated_within_a_stream_keeps_the_stream(
        self, mesh: DeviceMesh, comm: Stream
    ) -> None:
        with comm.activate(), mesh.slice(dp=0).activate() as part:
            x = torch.ones(2)
            assert x.stream is comm  # type: ignore[attr-defined]
            assert x.mesh is part is mesh.slice(dp=0)  # type: ignore[attr-defined]

    def test_mixing_tensors_of_two_streams_is_refused(self, mesh: DeviceMesh, comm: Stream) -> None:
        x = torch.ones(2)
        with comm.activate():
            y = torch.ones(2)
            with pytest.raises(mt.WrongStream, match="stream default is used while comm is active"):
                x + 1
            with pytest.raises(mt.WrongStream, match="borrow it"):
                mt.reduce(x)  # type: ignore[arg-type]
        with pytest.raises(mt.WrongStream, match="streams comm and default"):
            x + y
        with pytest.raises(mt.WrongStream, match="streams comm and default"):
            remote(_same)(x, y)
        assert inspect(x + 1).tolist() == inspect(y + 1).tolist() == [2, 2]

    def test_a_stream_runs_while_another_waits(self, mesh: DeviceMesh, comm: Stream) -> None:
        held = waits_for(torch.ones(2), "one_runs")
        with comm.activate():
            # This completes although the default stream can continue only afterwards.
            assert inspect(torch.ones(2) + 1).tolist() == [2, 2]
            assert (torch.ones(()) + 1).item() == 2
            assert torch.nonzero(torch.ones(2)).shape == (2, 1)
            opened = opens(torch.ones(2), "one_runs")
        assert inspect([held + 1, opened])[0].tolist() == [2, 2]

    def test_each_stream_runs_in_program_order(self, mesh: DeviceMesh, comm: Stream) -> None:
        x = torch.ones(1)
        with comm.activate():
            y = torch.ones(1)
        for step in range(20):
            writes(x, f"a{step}")
            writes(y, f"b{step}")
        inspect([x, y])
        log = log_of(x)
        assert [one for one in log if one[0] == "a"] == [f"a{step}" for step in range(20)]
        assert [one for one in log if one[0] == "b"] == [f"b{step}" for step in range(20)]

    def test_collectives_of_two_streams_do_not_interfere(
        self, mesh: DeviceMesh, comm: Stream
    ) -> None:
        with comm.activate():
            y = mesh.rank("dp") + torch.zeros(3)
        x = mesh.rank("dp") + torch.ones(5)
        for _ in range(10):
            x = x.reduce("dp", "avg")  # type: ignore[attr-defined]
            y = y.reduce("dp", "max")  # type: ignore[attr-defined]
        moved = mt.to_mesh(y, mesh)  # type: ignore[arg-type]
        got = inspect([x, y, moved])
        assert [one.tolist() for one in got] == [[1.5] * 5, [1] * 3, [1] * 3]

    def test_functions_receive_process_groups_of_their_stream(
        self, mesh: DeviceMesh, comm: Stream
    ) -> None:
        def total(x: torch.Tensor, group: Any, there: Any) -> torch.Tensor:
            torch.distributed.all_reduce(x, group=group)
            torch.distributed.all_reduce(x, group=there.get_group("dp"))
            return x.clone()

        function = remote(total, propagate=lambda x, *_: x.add_(0).clone())
        x = torch.ones(2)
        with comm.activate():
            y = torch.ones(2)
        made = [function(one, mesh.process_group("dp"), mesh) for one in (x, y) for _ in range(3)]
        assert [one.tolist() for one in inspect(made)] == [[4, 4], [16, 16], [64, 64]] * 2


class TestBorrows:
    """The rights of both sides of a borrow, and synchronization."""

    def test_during_an_immutable_borrow_both_streams_can_only_read(
        self, mesh: DeviceMesh, comm: Stream
    ) -> None:
        x = torch.ones(2)
        view = x[:1]
        borrowed, borrow = comm.borrow(x)  # type: ignore[arg-type]  # the line of the borrow
        assert inspect([x + 1, borrowed + 1, borrowed[1:] * 3])[0].tolist() == [2, 2]
        for write in (x.add_, view.add_, borrowed.add_, borrowed[:1].add_):
            with pytest.raises(mt.MutatingBorrow, match="the line of the borrow"):
                write(1)
        with pytest.raises(mt.MutatingBorrow):
            comm.borrow(view, mutable=True)  # type: ignore[arg-type]
        again, second = comm.borrow(view)  # type: ignore[arg-type]
        assert inspect(again).tolist() == [1]
        borrow.drop()
        with pytest.raises(mt.MutatingBorrow):
            x.add_(1)
        second.drop()
        x.add_(1)
        assert inspect(view).tolist() == [2]

    def test_during_a_mutable_borrow_the_origin_cannot_be_used(
        self, mesh: DeviceMesh, comm: Stream
    ) -> None:
        x = torch.ones(2)
        view = x[:1]
        borrowed, borrow = comm.borrow(x, mutable=True)  # type: ignore[arg-type]
        uses: list[Any] = [
            lambda: x + 1,
            lambda: view.add_(1),
            lambda: inspect(x),
            lambda: view.item(),
            lambda: writes(x, "never"),
            lambda: remote(_take_log).call(x),
            lambda: comm.borrow(view),  # type: ignore[arg-type]
            lambda: x[1:],
        ]
        for use in uses:
            with pytest.raises(mt.BorrowedMutably, match="drop the borrow first"):
                use()
        borrowed.mul_(5)
        assert inspect(borrowed).tolist() == [5, 5]
        borrow.drop()
        assert inspect(view + x[1:]).tolist() == [10]

    def test_a_borrowed_tensor_is_invalid_after_the_borrow_is_dropped(
        self, mesh: DeviceMesh, comm: Stream
    ) -> None:
        x = torch.ones(2)
        borrowed, borrow = comm.borrow(x)  # type: ignore[arg-type]
        view = borrowed[:1]
        with borrow:
            kept = borrowed + 1
        assert borrow.is_dropped
        for use in (lambda: borrowed + 1, lambda: view + 1, lambda: inspect(borrowed)):
            with pytest.raises(mt.BorrowEnded, match="borrow again"):
                use()
        borrow.drop()
        again, second = comm.borrow(x)  # type: ignore[arg-type]
        with second:
            assert inspect(kept + again).tolist() == [3, 3]

    def test_memory_is_shared(self, mesh: DeviceMesh, comm: Stream) -> None:
        place = remote(lambda x: x.data_ptr())
        x = torch.ones(4)
        borrowed, borrow = comm.borrow(x[1:], mutable=True)  # type: ignore[arg-type]
        with borrow:
            there = place.call(borrowed).get().values()
            borrowed.t().fill_(7)
        assert [one - 4 for one in there] == place.call(x).get().values()
        assert inspect(x).tolist() == [1, 7, 7, 7]

    def test_the_first_use_waits_for_the_origin_but_the_borrow_does_not(
        self, mesh: DeviceMesh, comm: Stream
    ) -> None:
        x = waits_for(torch.ones(2), "first_use")
        borrowed, borrow = comm.borrow(x)
        with comm.activate():
            early = inspect(torch.ones(2) + 1)
            opens(torch.ones(2), "first_use")
        with borrow:
            assert inspect(borrowed + early).tolist() == [3, 3]

    def test_the_origin_stream_runs_until_it_uses_the_lent_tensor(
        self, mesh: DeviceMesh, comm: Stream
    ) -> None:
        x, other = torch.ones(2), torch.ones(2)
        borrowed, borrow = comm.borrow(x, mutable=True)  # type: ignore[arg-type]
        with borrow:
            borrowed.add_(waits_for(borrowed, "goes_on"))
        # The borrow is dropped and the other stream is not done, but this stream is not blocked.
        assert inspect(other + 1).tolist() == [2, 2]
        opens(other, "goes_on")
        assert inspect(x).tolist() == [2, 2]

    def test_a_read_does_not_wait_for_another_reader(self, mesh: DeviceMesh, comm: Stream) -> None:
        x = torch.ones(2)
        borrowed, borrow = comm.borrow(x)  # type: ignore[arg-type]
        with borrow:
            slow = waits_for(borrowed, "reads")
        assert inspect(x + 1).tolist() == [2, 2]
        opens(x, "reads")
        x.add_(1)
        assert inspect([slow, x])[0].tolist() == [1, 1]

    def test_a_borrowed_tensor_can_be_lent_to_a_third_stream(
        self, mesh: DeviceMesh, comm: Stream
    ) -> None:
        third = Stream("third")
        x = torch.ones(2)
        borrowed, borrow = comm.borrow(x, mutable=True)  # type: ignore[arg-type]
        borrowed.add_(1)
        further, second = third.borrow(borrowed, mutable=True)
        further.mul_(10)
        with pytest.raises(mt.BorrowedMutably):
            borrowed + 1
        borrow.drop()
        assert second.is_dropped
        assert inspect(x).tolist() == [20, 20]

    def test_a_leaked_borrow_is_dropped_with_a_warning_that_names_its_line(
        self, mesh: DeviceMesh, comm: Stream
    ) -> None:
        x = torch.ones(2)
        borrowed, borrow = comm.borrow(x, mutable=True)  # type: ignore[arg-type]  # it was here
        borrowed.add_(1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del borrow
        assert caught[0].category is ResourceWarning
        assert "it was here" in str(caught[0].message)
        assert inspect(x).tolist() == [2, 2]

    def test_gradients_flow_through_a_borrow(self, mesh: DeviceMesh, comm: Stream) -> None:
        w = torch.ones(2, requires_grad=True)
        borrowed, borrow = comm.borrow(w * 2)  # type: ignore[arg-type]
        loss = (borrowed * borrowed).sum()
        assert loss.stream is comm  # type: ignore[attr-defined]
        loss.backward(retain_graph=True)
        borrow.drop()
        with pytest.raises(mt.BorrowEnded):
            loss.backward()
        assert inspect(w.grad).tolist() == [8, 8]  # type: ignore[union-attr]
        with pytest.raises(mt.NoGradient):
            comm.borrow(w, mutable=True)  # type: ignore[arg-type]

    def test_a_move_can_run_on_another_stream(self, mesh: DeviceMesh, comm: Stream) -> None:
        with mesh.slice(dp=slice(0, 1)).activate() as first:
            x = torch.ones(2, requires_grad=True)
        y = mt.to_mesh(x * 3, mesh.slice(dp=slice(1, 2)), stream=comm)  # type: ignore[arg-type]
        assert y.stream is comm
        y.sum().backward()
        assert inspect(y.detach()).tolist() == [3, 3]
        assert x.grad.mesh is first  # type: ignore[union-attr]
        assert inspect(x.grad).tolist() == [3, 3]  # type: ignore[union-attr]

    def test_a_gradient_is_reduced_during_the_backward_of_the_previous_layer(
        self, mesh: DeviceMesh, comm: Stream
    ) -> None:
        class Traced(torch.autograd.Function):
            """The previous layer: its backward completes only after the reduce was issued."""

            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                return waits_for(grads[0], "was reduced")

        first = torch.ones(2, requires_grad=True)
        second = torch.full((2,), 2.0, requires_grad=True)
        reduced = []

        def reduce(parameter: Any) -> None:
            with torch.no_grad():
                gradient, borrow = comm.borrow(parameter.grad, mutable=True)
            with borrow, comm.activate():
                gradient.reduce_("dp")
                reduced.append(opens(gradient, "was reduced"))

        second.register_post_accumulate_grad_hook(reduce)
        (Traced.apply(first * 1) * second).sum().backward()
        assert inspect(first.grad).tolist() == [2, 2]  # type: ignore[union-attr]
        assert inspect(second.grad).tolist() == [2, 2]  # type: ignore[union-attr]


class TestFailures:
    """Lost values, and where their errors are raised."""

    def test_a_failure_propagates_across_streams_and_names_its_line(
        self, mesh: DeviceMesh, comm: Stream
    ) -> None:
        index = mesh.rank("dp").view(1) * 5
        bad = torch.ones(2)[index]  # the line that fails
        borrowed, borrow = comm.borrow(bad)  # type: ignore[arg-type]
        with borrow:
            total = borrowed.reduce("dp")  # type: ignore[attr-defined]
        for one in (total, total + 1, bad):
            with pytest.raises(mt.OpFailed, match="rank 1") as caught:
                inspect(one)
            assert "the line that fails" in caught.value.stack
        with comm.activate():
            assert inspect(torch.ones(1) + 1).tolist() == [2]

    def test_a_tensor_partially_written_by_a_borrower_is_lost_at_the_origin(
        self, mesh: DeviceMesh, comm: Stream
    ) -> None:
        x = torch.ones(3, 2)
        row, other = x[0], torch.ones(2)
        borrowed, borrow = comm.borrow(x, mutable=True)  # type: ignore[arg-type]
        with borrow, comm.activate():
            size = mesh.rank("dp") * 9
            borrowed.index_fill_(0, size.view(1), 7)  # the line that fails
        for one in (x, row, row + 1):
            with pytest.raises(mt.OpFailed) as caught:
                inspect(one)
            assert "the line that fails" in caught.value.stack
        assert inspect(other).tolist() == [1, 1]

    def test_a_failure_is_reported_before_a_slow_stream_finishes(
        self, mesh: DeviceMesh, comm: Stream
    ) -> None:
        slow = waits_for(torch.ones(2), "heard of")
        with comm.activate():
            bad = torch.ones(2)[mesh.rank("dp").view(1) * 5]
            for one in (bad, bad.reduce("dp")):  # type: ignore[attr-defined]
                with pytest.raises(mt.OpFailed, match=r"aten\.index"):
                    inspect(one, dp=0)
            with pytest.raises(mt.OpFailed, match=r"aten\.index"):
                remote(_take_log).call(bad).get()
            opens(torch.ones(2), "heard of")
        assert inspect(slow).tolist() == [1, 1]


class TestEnds:
    """Nothing is left over, and nothing hangs."""

    def test_dropped_tensors_and_borrows_leave_nothing_behind(
        self, mesh: DeviceMesh, comm: Stream
    ) -> None:
        before = counted(mesh)
        for step in range(30):
            x = torch.ones(2) + step
            borrowed, borrow = comm.borrow(x, mutable=bool(step % 2))  # type: ignore[arg-type]
            with borrow:
                y = borrowed * 2
            if step % 3:
                x.add_(1)
            unused, second = comm.borrow(y)  # type: ignore[arg-type]
            second.drop()
        del x, y, borrowed, unused
        inspect(torch.ones(1))
        counted(mesh)
        after = counted(mesh)
        assert [one["values"] for one in after] == [one["values"] for one in before]
        assert [one["borrows"] for one in after] == [0, 0]
        assert mesh._engine.borrows.count == 0

    @pytest.fixture
    def mortal(self) -> Iterator[ProcMesh]:
        procs = this_host().spawn_procs({"dp": 2}, name="mortal")
        yield procs
        procs.stop().get()

    def test_a_process_death_fails_all_waiting_streams(
        self, mortal: ProcMesh, comm: Stream
    ) -> None:
        with mortal.activate():
            with comm.activate():
                inspect(torch.ones(1))
            x = waits_for(torch.ones(2), "never")
            borrowed, borrow = comm.borrow(x)
            total = borrowed.reduce("dp")
            with comm.activate():
                assert inspect(torch.ones(1)).tolist() == [1]
            kill_proc(mortal, 1)
            with pytest.raises(MeshError):
                inspect(total)
            with pytest.raises(MeshError):
                inspect(x)
            borrow.drop()
        mortal.replace(1)
        with mortal.activate():
            borrowed, borrow = comm.borrow(torch.ones(2))  # type: ignore[arg-type]
            with borrow:
                assert inspect(borrowed.reduce("dp")).tolist() == [2, 2]  # type: ignore[attr-defined]
