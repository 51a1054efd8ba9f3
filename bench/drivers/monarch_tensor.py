"""Drives the tensors of the peer, `torchmonarch` 0.7.0, which supports reductions only on GPUs."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from monarch import fetch_shard, remote  # type: ignore[import-not-found]
from monarch.actor import Actor, endpoint, this_host  # type: ignore[import-not-found]
from monarch.common._coalescing import compile as record  # type: ignore[import-not-found]

from bench.drivers.tensor_program import TensorApi, TensorDriver, bump

_S_MAX = 100

_FIRST_FETCH = """
import os, torch
from monarch import fetch_shard
from monarch.actor import this_host
if __name__ == "__main__":
    procs = this_host().spawn_procs({"gpus": 2})
    with procs.activate():
        fetch_shard(torch.ones(4, 4) + 1).result(timeout=100)
    os.write(1, b"x")
    os._exit(0)
"""


class Toucher(Actor):  # type: ignore[misc]
    @endpoint  # type: ignore[untyped-decorator]
    def touch(self, x: torch.Tensor) -> int:
        return x.shape[0]


def _place(tensor: torch.Tensor, deviation: float) -> Any:
    # The peer cannot send a tensor of the program.
    drawn = torch.randn(tensor.shape).mul_(deviation)
    return drawn.requires_grad_(tensor.requires_grad)


class _Monarch(TensorDriver):
    def close(self) -> None:
        sys.stdout.flush()
        os._exit(0)


def driver() -> TensorDriver:
    """Return the driver of the peer."""
    api = TensorApi(
        this_host=this_host,
        fetch=lambda tensor: fetch_shard(tensor).result(timeout=_S_MAX),
        bump=remote(bump, propagate=torch.empty_like),
        toucher=Toucher,
        place=_place,
        trace=lambda function: record(function, verify=False),
        average_=None,
        average=None,
        inspect_remote=None,
        first_fetch=_FIRST_FETCH,
    )
    return _Monarch("monarch_tensor", api)
