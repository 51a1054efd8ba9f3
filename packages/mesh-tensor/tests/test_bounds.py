"""The memory of a program whose shapes never recur."""

from __future__ import annotations

import pytest
import torch

import mesh_tensor as mt
from mesh_core.testing import wait_until
from mesh_tensor import DeviceMesh
from mesh_tensor._engine.engine import Engine
from mesh_tensor._instructions import compiled_op_cache


def _is_settled(engine: Engine) -> bool:
    """Return whether the program knows that all operations are done."""
    engine.stream.settle()
    return engine.stream.done == engine.stream.issued


def test_compiled_ops_and_tensor_metadata_are_bounded(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_op_cache, "_COMPILED_OPS_MAX", 64)
    engine = mesh._engine
    steady = torch.ones(4)
    for size in range(1, 400):
        changing = torch.ones(size)
        total = (changing * 2).sum() + steady.sum()
        if size % 50 == 0:
            assert mt.inspect(total) == 2 * size + 4
            counts = list(engine._workers.count.call().get().values())
            wait_until(lambda: _is_settled(engine))
            if size == 50:
                # The compiled ops of earlier tests on this mesh are removed only from now on.
                continue
            # The last terms are the compiled ops since the last time that all operations were done,
            # four per size.
            assert len(engine.compiled_ops) <= 64 + 8 + 4 * 50
            assert len(engine.metas) <= 64 + 8 + 4 * 50
            assert all(one["compiled_ops"] <= 64 + 8 + 4 * 50 for one in counts)
            assert max(one["values"] for one in counts) <= 8


def test_an_evicted_op_is_compiled_again(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_op_cache, "_COMPILED_OPS_MAX", 16)
    values = []
    for _ in range(3):
        made = [torch.full((size,), 2.0).sum() for size in range(1, 30)]
        values.append([float(one) for one in mt.inspect(made)])
    assert values == [[2.0 * size for size in range(1, 30)]] * 3
