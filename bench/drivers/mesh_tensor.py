"""Drives mesh-tensor."""

from __future__ import annotations

from typing import Any

import torch

import mesh_tensor
from bench.drivers.tensor_program import TensorApi, TensorDriver, bump
from mesh_core import Actor, endpoint, this_host
from mesh_tensor import inspect, put, remote

_FIRST_FETCH = """
import os
from mesh_core import this_host
this_host().preload("torch", "mesh_tensor")
import torch
from mesh_tensor import inspect
procs = this_host().spawn_procs({"gpus": 2})
with procs.activate():
    inspect(torch.ones(4, 4) + 1)
os.write(1, b"x")
"""


class Toucher(Actor):
    @endpoint
    def touch(self, x: torch.Tensor) -> int:
        return x.shape[0]


def _inspect_remote(function: Any) -> Any:
    return remote(function, propagate="inspect")


def driver() -> TensorDriver:
    """Return the driver of `mesh_tensor`."""
    api = TensorApi(
        this_host=this_host,
        fetch=inspect,
        bump=remote(bump, propagate=torch.empty_like),
        toucher=Toucher,
        place=lambda tensor, _: put(tensor),
        trace=getattr(mesh_tensor, "trace", None),
        average_=lambda tensor: tensor.reduce_("gpus", "avg"),
        average=lambda tensor: tensor.reduce("gpus", "avg"),
        inspect_remote=_inspect_remote,
        first_fetch=_FIRST_FETCH,
    )
    return TensorDriver("mesh_tensor", api)
