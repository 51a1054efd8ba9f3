"""The benchmark's program with distributed tensors, written once for Mesh and its peer.

The runner sees to it that torch has one thread in every process, the program's included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.affinity import pin_process
from bench.drivers.driver import Driver


def bump(x: torch.Tensor) -> torch.Tensor:
    """What is called on the processes."""
    return x + 1


def await_file(path: str) -> None:
    """Keeps a process busy until a file is there."""
    while not Path(path).exists():
        time.sleep(0.001)


@dataclass(frozen=True)
class TensorApi:
    """The names a framework is driven by; what it does not have is None."""

    this_host: Callable[[], Any]
    #: Brings the value of the first process here, and waits.
    fetch: Callable[[Any], Any]
    #: `bump`, to be called on all processes.
    bump: Any
    #: An actor with an endpoint `touch` that gets a tensor.
    toucher: type
    #: Sends a tensor of the program to all processes, or makes one of the same shape and of this
    #: standard deviation there.
    place: Callable[[torch.Tensor, float], Any]
    #: Records a function at its first call, and plays it from then on.
    trace: Callable[[Any], Any] | None
    #: Averages over the processes, in place.
    average_: Callable[[Any], Any] | None
    average: Callable[[Any], Any] | None
    #: Makes a function run on the processes for its value.
    inspect_remote: Callable[[Any], Any] | None
    #: A program that has two processes and prints an `x` once a value was fetched.
    first_fetch: str


class TensorDriver(Driver):
    """Drives a framework through `activate`, operations of torch and fetches."""

    def __init__(self, name: str, api: TensorApi) -> None:
        self.name = name
        self.api = api
        torch.set_num_threads(1)

    @property
    def is_peer(self) -> bool:
        """Whether it is not ours: many of its operations would take minutes."""
        return self.name.startswith("monarch")

    def start(self, workers: int, kind: str = "tensor") -> None:
        self._procs = self.api.this_host().spawn_procs({"gpus": workers})
        with self.activate():
            self.api.fetch(torch.ones(4, 4) + 1)

    def stop(self) -> None:
        """Nothing: the processes end with the program."""

    def activate(self) -> AbstractContextManager[Any]:
        """Has tensors made on the processes."""
        active: AbstractContextManager[Any] = self._procs.activate()
        return active

    def place(self, tensor: torch.Tensor) -> Any:
        """Has a tensor on all processes like this one."""
        deviation = float(tensor.detach().square().mean().sqrt())
        with self.activate():
            return self.api.place(tensor, deviation)

    def call_bump(self, x: Any) -> Any:
        """Calls a function on all processes, and waits for its values."""
        return self.api.bump.call(x).get()

    def start_actors(self) -> None:
        """Starts one on each process, for `touch`."""
        self._touchers = self._procs.spawn("touchers", self.api.toucher)

    def touch(self, x: Any) -> Any:
        """Calls an endpoint of all of them with a tensor, and waits for the answers."""
        return self._touchers.touch.call(x).get()

    def pin(self, cores: Sequence[int]) -> None:
        """Keeps the processes on some cores."""
        assert self.api.inspect_remote is not None
        with self.activate():
            self.api.inspect_remote(pin_process).call(list(cores)).get()

    def block(self, path: str) -> None:
        """Has the processes do nothing more until a file is there."""
        if self.api.inspect_remote is not None:
            self.api.inspect_remote(await_file).broadcast(path)
