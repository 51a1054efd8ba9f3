"""Functions that run concurrently with the operations of their process and exchange tensors."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch

import mesh_tensor as mt
from mesh_core import current_rank
from mesh_tensor import DeviceMesh, create_pipe, inspect, remote

SIZES = {"dp": 2}

_ended = threading.Event()


def loads(pipe: mt.PipeEnd, count: int) -> None:
    """Send batches that differ between processes."""
    rank = current_rank().rank
    for step in range(count):
        pipe.send({"x": torch.full((2,), step * 10.0 + rank), "y": torch.tensor(step)})


def doubles(pipe: mt.PipeEnd) -> None:
    """Reply to each tensor with its double, until the pipe is dropped."""
    for x in pipe:
        pipe.send(x * 2)
    _ended.set()


def fails(pipe: mt.PipeEnd) -> None:
    """Fail on one process after sending a tensor."""
    pipe.send(torch.ones(1))
    if current_rank().rank == 1:
        raise KeyError("no such file")  # the line in the function
    pipe.send(torch.ones(1))


def test_batches_are_loaded_in_each_process(mesh: DeviceMesh) -> None:
    pipe = create_pipe(loads, 5)
    got = [pipe.recv() for _ in range(5)]
    assert inspect([one["x"] + one["y"] for one in got], dp=1)[4].tolist() == [45, 45]
    assert inspect([one["x"][0] for one in got]) == [0, 10, 20, 30, 40]


def test_the_function_replies_to_sent_tensors(mesh: DeviceMesh) -> None:
    pipe = create_pipe(doubles, propagate=lambda: torch.empty(3))
    for step in range(10):
        pipe.send(torch.full((3,), float(step)))
        assert inspect(pipe.recv()).tolist() == [step * 2.0] * 3


def test_dropping_the_pipe_stops_the_function(mesh: DeviceMesh) -> None:
    with create_pipe(doubles) as pipe:
        pipe.send(torch.ones(2))
        assert inspect(pipe.recv()).tolist() == [2, 2]
    with pytest.raises(mt.PipeEnded, match="was dropped"):
        pipe.recv()
    gc.collect()
    has_ended = remote(lambda x: _wait_for_end())
    assert has_ended.call(torch.ones(1)).get().values() == [True, True]


def _wait_for_end() -> bool:
    import test_pipes

    return test_pipes._ended.wait(20)


def test_a_failure_of_the_function_fails_the_received_tensor(mesh: DeviceMesh) -> None:
    pipe = create_pipe(fails, propagate=lambda: torch.empty(1))
    first, second = pipe.recv(), pipe.recv()  # received here
    assert inspect(first).tolist() == [1]
    with pytest.raises(mt.OpFailed, match=r"on rank 1.*KeyError: 'no such file'") as caught:
        inspect(second + 1, dp=0)
    assert "the line in the function" in str(caught.value)
    assert "received here" in caught.value.stack


def test_receiving_more_than_is_sent_fails_without_waiting(mesh: DeviceMesh) -> None:
    pipe = create_pipe(loads, 1)
    pipe.recv()
    with pytest.raises(mt.OpFailed, match="loads has ended"):
        inspect(pipe.recv()["x"])


def test_a_pipe_is_lost_when_a_sent_tensor_is_lost(mesh: DeviceMesh) -> None:
    pipe = create_pipe(doubles, propagate=lambda: torch.empty(1))
    pipe.send(torch.ones(2)[mesh.rank("dp").view(1) * 5])
    with pytest.raises(mt.OpFailed, match=r"aten\.index"):
        inspect(pipe.recv())


def test_a_pipe_belongs_to_the_stream_active_at_its_creation(mesh: DeviceMesh) -> None:
    data = mt.Stream("data")
    with data.activate():
        pipe = create_pipe(loads, 3, propagate=lambda: {"x": torch.empty(2), "y": _scalar()})
        batch: dict[str, Any] = pipe.recv()
    assert batch["x"].stream is data
    x, borrow = mt.get_active_stream().borrow(batch["x"])
    with borrow:
        assert inspect(x + 1, dp=1).tolist() == [2, 2]


def _scalar() -> torch.Tensor:
    return torch.empty((), dtype=torch.int64)
